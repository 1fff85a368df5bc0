/* SPDX-License-Identifier: Apache-2.0
 * `ramet-core probe`: tries each kernel feature that core stands on and prints a line for each:
 * name TAB "ok" or an errno name's number TAB text. Doctor reads it. */
#ifndef RAMET_PROBE_H
#define RAMET_PROBE_H

int probe_main(void);

#endif
