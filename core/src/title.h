/* SPDX-License-Identifier: Apache-2.0
 * What ps shows. Init inherits core's memory, and a guest reads /proc/1/cmdline: no argument of the host may stand
 * there. */
#ifndef RAMET_TITLE_H
#define RAMET_TITLE_H

void title_setup(int argc, char **argv);
void title_set(const char *title);

#endif
