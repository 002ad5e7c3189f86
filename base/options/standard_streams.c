// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: gives a program the standard streams that it was started without. Otherwise the next file that it opens gets
 *          the number of one, and is read as its input, or written to as its output.
 *
 * Design: libraries open files before main(), and before the constructors of the program. Functions in .preinit_array
 *         run before them. A library cannot have such a section, so this file is in no library: sl_program() links it
 *         into every program. The input is at its end; output fails, as it would without a stream. A program that
 *         cannot have its streams ends, before a file is taken for one.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static void open_missing_streams(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        // A file gets the lowest number that is free: this one.
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd) {
            _exit(EXIT_FAILURE);
        }
    }
}

__attribute__((section(".preinit_array"), used)) static void (*at_start)(void) = open_missing_streams;
