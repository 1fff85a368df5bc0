/* SPDX-License-Identifier: Apache-2.0
 * `ramet-core lend`: run by a daemon that is the host's root. Core never holds that uid, so directories that only
 * root can reach are opened here, each as a detached mount, and handed to core by descriptor. */
#ifndef RAMET_LEND_H
#define RAMET_LEND_H

int lend_main(int argc, char **argv);

#endif
