// SPDX-License-Identifier: Apache-2.0
#include "base/options/program.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "base/heap.h"
#include "base/options/environment.h"

#define SLICE_NS 100000 // the shortest that Linux has

static void complain(const struct sl_program *program, const struct sl_error *err) {
    if (sl_log_is_json()) {
        sl_log_write("main", SL_LOG_ERROR, "%s", err->text);
    } else {
        fprintf(stderr, "%s: %s\n", program->name, err->text);
    }
}

static void warn(const char *program, const char *text) {
    (void)program; // the log names the program already
    sl_log_warn("main", "%s", text);
}

// Returns false if --help could not be written: a full disk must not look like success.
static bool written(void) {
    return fflush(stdout) == 0 && !ferror(stdout);
}

/*
 * Shortens the time slices of this process's threads, which inherit them: most relay a message and wait again. Linux
 * lets the thread that runs end its slice before one that wakes, unless that one has a shorter slice. Without effect
 * before Linux 6.12.
 */
static void shorten_time_slices(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t slice_ns, deadline_ns, period_ns;
    } own; // the kernel's struct sched_attr, which not all C libraries have
    if (syscall(SYS_sched_getattr, 0, &own, sizeof own, 0) == 0 && own.policy == SCHED_OTHER) {
        own.flags = 0;
        own.slice_ns = SLICE_NS;
        if (syscall(SYS_sched_setattr, 0, &own, 0) != 0) {
            sl_log_info("main", "no short time slices, so answers may come later: %s", strerror(errno));
        }
    }
}

bool sl_program_begin(const struct sl_program *program, int argc, char **argv, void *config,
                      const struct sl_program_options *common, int *code_out) {
    struct sl_error err = {0};
    int first;
    enum sl_status status = sl_config_parse(program, argc, argv, config, &first, &err);
    if (status == SL_ERR_CANCELLED) { // --help or --version
        *code_out = written() ? SL_EXIT_OK : SL_EXIT_FAILED;
        return false;
    }
    if (status == SL_OK && first < argc) {
        status = sl_fail(&err, SL_ERR_INVALID, "unexpected argument '%s'; see --help", argv[first]);
    }
    SL_THEN(status, sl_log_set_format(common->log_format, &err));
    SL_THEN(status, sl_log_configure(common->log, &err));
    if (status == SL_OK) {
        sl_environment_check(warn, program->name);
        sl_descriptors_raise();
        sl_heap_limit();
        shorten_time_slices();
    }
    if (status != SL_OK) {
        complain(program, &err);
        *code_out = SL_EXIT_USAGE;
        return false;
    }
    return true;
}

int sl_program_end(const struct sl_program *program, enum sl_status status, const struct sl_error *err) {
    if (status != SL_OK) {
        complain(program, err);
    }
    return sl_exit_of(status);
}
