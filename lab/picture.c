// SPDX-License-Identifier: Apache-2.0
#include "lab/picture.h"

#include <errno.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/close.h"
#include "base/whole_file.h"
#include "lab/python.h"

#define NEEDS      "pictures need matplotlib: install the package python3-matplotlib, or leave out --png"
#define NO_LIBRARY 3 // the exit code of figures.py without matplotlib

static enum sl_status run(const char *const words[3], int input, struct sl_error *err) {
    pid_t pid, ended;
    int status = 0;
    SL_TRY(sl_python_start(words, input, -1, &pid, err));
    do {
        ended = waitpid(pid, &status, 0);
    } while (ended < 0 && errno == EINTR);
    SL_FAIL_IF(WIFEXITED(status) && WEXITSTATUS(status) == NO_LIBRARY, err, SL_ERR_UNSUPPORTED, "%s", NEEDS);
    SL_FAIL_IF(ended != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0, err, SL_ERR_IO,
               "python3 has failed; its output is above");
    return SL_OK;
}

// Runs with data, whose reference it takes, as standard input.
static enum sl_status run_with(const char *const words[3], json_t *data, struct sl_error *err) {
    int fd = memfd_create("data", MFD_CLOEXEC);
    bool written = data != NULL && fd >= 0 && json_dumpfd(data, fd, JSON_COMPACT) == 0 && lseek(fd, 0, SEEK_SET) == 0;
    enum sl_status status =
        written ? run(words, fd, err) : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the data of a report");
    json_decref(data);
    sl_close(fd);
    return status;
}

enum sl_status sl_picture_check(const char *path, struct sl_error *err) {
    if (path == NULL) {
        return SL_OK;
    }
    SL_TRY(sl_whole_file_check(path, err));
    enum sl_status status = run((const char *const[3]){"sluice_eval.figures", "check"}, -1, err);
    if (status == SL_ERR_UNSUPPORTED) { // it may be Python that is missing
        sl_fail(err, status, "%s", NEEDS);
    }
    return status;
}

enum sl_status sl_picture_draw(const char *kind, const char *path, json_t *data, struct sl_error *err) {
    return run_with((const char *const[3]){"sluice_eval.figures", kind, path}, data, err);
}

enum sl_status sl_report_check(struct sl_error *err) {
    return run((const char *const[3]){"sluice_eval.measured", "check"}, -1, err);
}

enum sl_status sl_report_print(const char *kind, const char *png, json_t *data, struct sl_error *err) {
    fflush(stdout);
    return run_with((const char *const[3]){"sluice_eval.measured", kind, png}, data, err);
}

json_t *sl_report_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

enum sl_status sl_page_write(const char *module, const char *path, json_t *data, struct sl_error *err) {
    SL_TRY_OR(sl_whole_file_check(path, err), json_decref(data));
    return run_with((const char *const[3]){module, path}, data, err);
}

json_t *sl_picture_numbers(const double *values, size_t n) {
    json_t *numbers = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(numbers, sl_report_number(values[i]));
    }
    return numbers;
}
