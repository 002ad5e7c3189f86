// SPDX-License-Identifier: Apache-2.0
#include "client/cli/chat/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define NAME "sluice/chat-history"

// Makes every folder on the way to the file. If that fails, writing the file reports the error.
static void make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
}

bool sl_chat_history_path(char path_out[PATH_MAX]) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (state && state[0] == '/') { // the XDG specification says that relative paths are ignored
        n = snprintf(path_out, PATH_MAX, "%s/" NAME, state);
    } else if (home && home[0] == '/') {
        n = snprintf(path_out, PATH_MAX, "%s/.local/state/" NAME, home);
    }
    if (n < 0 || n >= PATH_MAX) {
        return false;
    }
    make_folders(path_out);
    return true;
}
