// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a disk that fails when a test wants it: the calls that the store makes to the system, counted, and made to fail.
 *
 * Design: the linker leads every call of a test's program to these functions (--wrap), which also works under sanitizers. A call that
 *         fails does nothing, but for close(), after which the file is closed.
 */
#pragma once

#include <stdbool.h>

enum fault_kind {
    FAULT_ERROR,  // fail with `error`
    FAULT_HALF,   // read or write half of what was asked for; other calls are as ever
    FAULT_KILLED, // the process ends before the call
    FAULT_SILENT, // the call is made when the faults end
};

enum fault_scope { FAULT_ALL, FAULT_CHANGING, FAULT_GROWING }; // calls that change the disk; that need room on it

struct fault {
    enum fault_kind kind;
    int error;              // FAULT_ERROR
    int at;                 // the first call that it hits, from 0 on
    bool lasting;           // all later ones as well
    int every;              // or each of so many from then on; 0: no
    int most;               // how many it hits; 0: all of these
    enum fault_scope scope; // other calls are not counted
    const char *only;       // nor those of other names; NULL: all are
    bool is_elsewhere;      // files are on another file system than before
    bool
        uncached; // nor reads of files that posix_fadvise() has not dropped since they were opened, as if they were in the page cache
};

void fault_begin(const struct fault *fault);
// No more faults from here on. Returns the name of the first call that was hit; NULL: there were not so many calls.
const char *fault_end(void);
int fault_hits(void); // how many calls have been hit
