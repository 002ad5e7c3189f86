// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/json_lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum sl_status take_line(const char *line,
                                enum sl_status (*take_fn)(void *arg, json_t *object, struct sl_error *err), void *arg,
                                struct sl_error *err) {
    json_error_t json_err;
    json_t *object = json_loads(line, 0, &json_err);
    SL_FAIL_OR(!json_is_object(object), json_decref(object), err, SL_ERR_INVALID, "%s",
               object ? "is not an object" : json_err.text);
    enum sl_status status = take_fn(arg, object, err);
    json_decref(object);
    return status;
}

enum sl_status sl_json_lines_read(const char *path,
                                  enum sl_status (*take_fn)(void *arg, json_t *object, struct sl_error *err), void *arg,
                                  struct sl_error *err) {
    FILE *file = fopen(path, "r");
    SL_FAIL_IF(!file, err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_INVALID, "%s: %s", path, strerror(errno));
    char *line = NULL;
    size_t n_allocated = 0;
    long long number = 0;
    enum sl_status status = SL_OK;
    errno = 0;
    while (status == SL_OK && getline(&line, &n_allocated, file) >= 0) {
        number++;
        status = line[strspn(line, " \t\r\n")] ? take_line(line, take_fn, arg, err) : SL_OK;
    }
    if (status != SL_OK) {
        char where[4096 + 32];
        snprintf(where, sizeof where, "%s:%lld", path, number);
        sl_error_prefix(err, where);
    } else if (ferror(file)) {
        status = sl_fail(err, SL_ERR_INVALID, "%s cannot be read: %s", path, strerror(errno));
    }
    free(line);
    fclose(file);
    return status;
}
