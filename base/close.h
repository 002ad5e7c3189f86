// SPDX-License-Identifier: Apache-2.0
// Purpose: closes what may not be open, for functions that clean up after a failure. What closing returns is ignored.
#pragma once

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

// Closes a descriptor; below 0: none.
static inline void sl_close(int fd) {
    if (fd >= 0) {
        close(fd);
    }
}

// Closes a stream; accepts NULL.
static inline void sl_close_file(FILE *file) {
    if (file) {
        fclose(file);
    }
}

// Closes a listing of a folder; accepts NULL.
static inline void sl_close_folder(DIR *folder) {
    if (folder) {
        closedir(folder);
    }
}
