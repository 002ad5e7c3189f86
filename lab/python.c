// SPDX-License-Identifier: Apache-2.0
#include "lab/python.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum sl_status sl_python_set_path(struct sl_error *err) {
    char bin[PATH_MAX] = "", *paths = NULL, *slash;
    const char *others = getenv("PYTHONPATH");
    bool set = false;
    if (readlink("/proc/self/exe", bin, sizeof bin - 1) > 0 && (slash = strrchr(bin, '/')) != NULL) {
        *slash = '\0';
        set = asprintf(&paths, "%s/../share/sluice/python:%s/../../lab/sluice_eval%s%s", bin, bin,
                       others && others[0] ? ":" : "", others ? others : "") > 0 &&
              setenv("PYTHONPATH", paths, 1) == 0;
    }
    free(paths);
    return set ? SL_OK : sl_fail(err, SL_ERR_IO, "the folder of this program cannot be found: %m");
}
