/* SPDX-License-Identifier: Apache-2.0
 * One JSON line an event, to a descriptor that the daemon gave. Losing a line is better than waiting for a reader. */
#ifndef RAMET_LOG_H
#define RAMET_LOG_H

#include "err.h"

void log_setup(int fd);
void log_text(const char *event, const char *text);
void log_err(const char *event, const struct err *err);

#endif
