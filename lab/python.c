// SPDX-License-Identifier: Apache-2.0
#include "lab/python.h"

#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/model_place.h"

extern char **environ;

enum sl_status sl_python_set_path(struct sl_error *err) {
    char bin[PATH_MAX], *paths = NULL;
    const char *others = getenv("PYTHONPATH");
    SL_TRY(sl_program_folder(bin, err));
    bool set = asprintf(&paths, "%s/../share/sluice/python:%s/../../lab/sluice_eval%s%s", bin, bin,
                        others && others[0] ? ":" : "", others ? others : "") > 0 &&
               setenv("PYTHONPATH", paths, 1) == 0;
    free(paths);
    return set ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for PYTHONPATH");
}

enum sl_status sl_python_start(const char *const words[3], int input, int output, pid_t *pid_out,
                               struct sl_error *err) {
    // As -m does, but an html.py in the present folder does not count. Standard input is UTF-8 in every locale.
    static const char run[] = "import sys; sys.path[:] = filter(None, sys.path); del sys.argv[0]; import runpy; "
                              "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)";
    const char *const argv[] = {"python3", "-B", "-X", "utf8", "-c", run, words[0], words[1], words[2], NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes; // commands block signals that they poll for; Python must not
    sigset_t none;
    SL_TRY(sl_python_set_path(err));
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    if (input >= 0) {
        posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    }
    if (output >= 0) {
        posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    }
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    int failure = posix_spawnp(pid_out, argv[0], &actions, &attributes, (char *const *)argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failure == 0
               ? SL_OK
               : sl_fail(err, SL_ERR_UNSUPPORTED, "python3 cannot be started (package python3): %s", strerror(failure));
}
