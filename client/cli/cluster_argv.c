// SPDX-License-Identifier: Apache-2.0
#include "client/cli/cluster_argv.h"

#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/child.h"

#define STEP_MS 5
#define TRY_MS  20000

// Adds a word that the list then owns; NULL: there was no memory for it.
static void add_owned(struct sl_argv *words, char *word) {
    if (word && words->n < SL_MAX_WORDS) {
        words->list[words->n++] = word;
        return;
    }
    words->too_many |= words->n == SL_MAX_WORDS;
    words->out_of_memory |= !word;
    free(word);
}

static void add_word(struct sl_argv *words, const char *word) {
    add_owned(words, strdup(word));
}

static void add_option(struct sl_argv *words, const char *name, const char *value) {
    if (value) {
        add_word(words, name);
        add_word(words, value);
    }
}

enum sl_status sl_argv_set_option(struct sl_argv *words, const char *name, const char *value, struct sl_error *err) {
    for (size_t i = 0; i + 1 < words->n; i++) {
        if (strcmp(words->list[i], name) == 0) {
            char *copy = strdup(value);
            SL_FAIL_IF(!copy, err, SL_ERR_EXHAUSTED, "out of memory");
            free(words->list[i + 1]);
            words->list[i + 1] = copy;
        }
    }
    return SL_OK;
}

static enum sl_status check_words(const struct sl_argv *words, struct sl_error *err) {
    return words->out_of_memory ? sl_fail(err, SL_ERR_EXHAUSTED, "out of memory")
           : words->too_many    ? sl_fail(err, SL_ERR_RANGE, "more than %d arguments for a worker", SL_MAX_WORDS)
                                : SL_OK;
}

void sl_argv_cleanup(struct sl_argv *words) {
    for (size_t i = 0; i < words->n; i++) {
        free(words->list[i]);
    }
    *words = (struct sl_argv){0};
}

static void add_program(struct sl_argv *words, const struct sl_cluster_origin *of, const char *role) {
    char *path;
    add_owned(words, asprintf(&path, "%s/sluice-%s", of->bin, role) < 0 ? NULL : path);
}

static enum sl_status add_tls(struct sl_argv *words, const struct sl_cluster_origin *of, const char *of_role,
                              const char *name, struct sl_error *err) {
    if (!of->config->tls) {
        return check_words(words, err);
    }
    struct sl_cluster_tls *tls = malloc(sizeof *tls);
    SL_FAIL_IF(!tls, err, SL_ERR_EXHAUSTED, "out of memory");
    enum sl_status status = sl_cluster_tls_find(of->config->tls, of_role, name, tls, err);
    if (status == SL_OK) {
        add_option(words, "--tls-ca", tls->ca);
        add_option(words, "--tls-cert", tls->certificate);
        add_option(words, "--tls-key", tls->key);
    }
    free(tls);
    return status == SL_OK ? check_words(words, err) : status;
}

enum sl_status sl_join_path(char path[PATH_MAX], const char *option, const char *folder, const char *name,
                            struct sl_error *err) {
    return snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "%s %.200s...: the path is too long", option, folder);
}

static bool has_entry(const char *folder, const char *name) {
    char path[PATH_MAX];
    return sl_join_path(path, "", folder, name, NULL) == SL_OK && access(path, F_OK) == 0;
}

/*
 * Returns whether a coordinator has a folder of its name in --coordinator-state. Of several, each has; but the first takes
 * --coordinator-state itself where one coordinator alone was before, so that its documents move to etcd.
 */
static bool has_own_folder(const struct sl_cluster_config *config, int64_t i, const char *name) {
    const char *folder = config->coordinator_state;
    return config->n_coordinators > 1 && (i > 0 || !has_entry(folder, "owner") || has_entry(folder, name));
}

enum sl_status sl_argv_of_coordinator(const struct sl_cluster_origin *of, int64_t i, const char *name,
                                      struct sl_argv *words, struct sl_error *err) {
    const struct sl_cluster_config *config = of->config;
    bool several = config->n_coordinators > 1;
    char listen[128], rebalance[32], path[PATH_MAX];
    snprintf(listen, sizeof listen, "%s:%lld", config->host, (long long)(config->port > 0 ? config->port + i : 0));
    add_program(words, of, "coordinator");
    add_option(words, "--listen", listen);
    add_option(words, "--model", config->model);
    add_option(words, "--weights", config->weights);
    add_option(words, "--log", config->workers_log);
    add_option(words, "--generation-config", config->generation_config);
    add_option(words, "--routing", config->routing);
    snprintf(rebalance, sizeof rebalance, "%lldms", (long long)config->rebalance_ms);
    add_option(words, "--rebalance", config->rebalance_ms > 0 ? rebalance : NULL);
    add_option(words, "--etcd", several ? of->etcd_servers : NULL);
    enum sl_status status = SL_OK;
    if (config->coordinator_state) {
        bool own = has_own_folder(config, i, name);
        status = own ? sl_join_path(path, "--coordinator-state", config->coordinator_state, name, err) : SL_OK;
        add_option(words, "--state", own ? path : config->coordinator_state);
    }
    if (status == SL_OK && config->tls) {
        status = sl_join_path(path, "--tls", config->tls, "salt", err);
        add_option(words, "--salt-file", path);
    }
    return status == SL_OK ? add_tls(words, of, "coordinator", "coordinator", err) : status;
}

enum sl_status sl_argv_of_gateway(const struct sl_cluster_origin *of, struct sl_argv *words, struct sl_error *err) {
    char listen[128];
    snprintf(listen, sizeof listen, "%s:%lld", of->config->host, (long long)of->config->http_port);
    add_program(words, of, "gateway");
    add_option(words, "--listen", listen);
    add_option(words, "--coordinator", of->address);
    add_option(words, "--log", of->config->workers_log);
    return add_tls(words, of, "client", "local", err);
}

enum sl_status sl_argv_of_worker(const struct sl_cluster_origin *of, const char *role, const char *name,
                                 struct sl_argv *words, struct sl_error *err) {
    const struct sl_cluster_config *config = of->config;
    char listen[128], disk_bytes[32], ranks[32], folder[PATH_MAX];
    bool has_model = strcmp(role, "kvstore") != 0;
    const char *disk = has_model ? NULL : config->disk;
    snprintf(listen, sizeof listen, "%s:0", config->host);
    snprintf(disk_bytes, sizeof disk_bytes, "%lld", (long long)config->disk_bytes);
    snprintf(ranks, sizeof ranks, "%lld", (long long)config->ranks);
    SL_TRY(disk ? sl_join_path(folder, "--disk", disk, name, err) : SL_OK);
    add_program(words, of, role);
    add_option(words, "--name", name);
    add_option(words, "--listen", listen);
    add_option(words, "--coordinator", of->address);
    add_option(words, "--fabric-listen", listen);
    add_option(words, "--transport", config->transport);
    add_option(words, "--arena", config->arena);
    add_option(words, "--model", has_model ? config->model : NULL);
    add_option(words, "--weights", has_model ? config->weights : NULL);
    add_option(words, "--device", has_model ? config->device : NULL);
    if (has_model) {
        add_word(words, "--report-loading");
    }
    add_option(words, "--ranks", has_model && config->ranks > 1 ? ranks : NULL);
    if (config->aggregated && strcmp(role, "decode") == 0) {
        add_word(words, "--aggregated");
    }
    add_option(words, "--disk", disk ? folder : NULL);
    add_option(words, "--disk-bytes", disk ? disk_bytes : NULL);
    add_option(words, "--evict", has_model ? NULL : config->evict);
    add_option(words, "--ttl", has_model ? NULL : config->ttl);
    add_option(words, "--log", config->workers_log);
    for (size_t a = 0; a < config->n_worker_arguments; a++) {
        add_word(words, config->worker_arguments[a]);
    }
    char of_role[32];
    snprintf(of_role, sizeof of_role, "worker-%s", role);
    return add_tls(words, of, of_role, name, err);
}

// --- checking --------------------------------------------------------------------------------------------------------

enum kind { COORDINATOR, KVSTORE, DECODE, PREFILL, GATEWAY, N_KINDS };

static enum sl_status words_of_kind(const struct sl_cluster_origin *of, enum kind kind, struct sl_argv *words,
                                    struct sl_error *err) {
    return kind == COORDINATOR ? sl_argv_of_coordinator(of, 0, "coordinator-0", words, err)
           : kind == KVSTORE   ? sl_argv_of_worker(of, "kvstore", "kvstore-0", words, err)
           : kind == DECODE    ? sl_argv_of_worker(of, "decode", "decode-0", words, err)
           : kind == PREFILL   ? sl_argv_of_worker(of, "prefill", "prefill-0", words, err)
                               : sl_argv_of_gateway(of, words, err);
}

static bool is_wanted(const struct sl_cluster_config *config, enum kind kind) {
    return kind == KVSTORE   ? config->n_kvstore > 0
           : kind == PREFILL ? config->n_prefill > 0
           : kind == GATEWAY ? config->has_gateway
                             : true;
}

// One kind of process with its command line, and its output, each line after "check | ".
struct attempt {
    struct sl_child child;
    FILE *said;
    char *text;
    size_t n_text;
};

static char *words_of_json(const char *line) {
    json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    const char *message = json_string_value(json_object_get(object, "message"));
    char *words = message ? strdup(message) : NULL;
    json_decref(object);
    return words;
}

// Returns the error in the last line of output. The lines before it are warnings.
static enum sl_status refusal(const struct attempt *attempt, struct sl_error *err) {
    size_t n = attempt->n_text;
    while (n > 0 && attempt->text[n - 1] == '\n') {
        attempt->text[--n] = '\0';
    }
    const char *newline = strrchr(attempt->text, '\n');
    const char *line = newline ? newline + 1 : attempt->text;
    char *message = line[0] == '{' ? words_of_json(line) : NULL;
    const char *bar = message ? NULL : strstr(line, "| ");
    const char *words = bar ? strstr(bar, ": ") : NULL; // text after the program's name
    if (message) {
        sl_fail(err, SL_ERR_INVALID, "%s", message);
    } else if (n > 0) {
        sl_fail(err, SL_ERR_INVALID, "%s", words ? words + 2 : bar ? bar + 2 : line);
    } else {
        char end[96];
        sl_fail(err, SL_ERR_INVALID, "a process does not take its options, and does not say why: it %s",
                sl_child_describe_end(&attempt->child, end, sizeof end));
    }
    free(message);
    return SL_ERR_INVALID;
}

static enum sl_status wait_for_all(struct attempt *attempts, size_t n, struct sl_error *err) {
    int64_t deadline_ns = sl_deadline_in_ms(TRY_MS);
    size_t n_running = n;
    while (n_running > 0 && sl_deadline_left_ms(deadline_ns) > 0) {
        sl_sleep_ms(STEP_MS);
        n_running = 0;
        for (size_t i = 0; i < n; i++) {
            sl_children_pump(&attempts[i].child, 1, 0, attempts[i].said);
            n_running += attempts[i].child.running;
        }
    }
    for (size_t i = 0; i < n && n_running > 0; i++) {
        sl_child_signal(&attempts[i].child, SIGKILL);
    }
    return n_running == 0 ? SL_OK
                          : sl_fail(err, SL_ERR_DEADLINE, "a process does not read its options within %d ms", TRY_MS);
}

static enum sl_status try_kind(const struct sl_cluster_origin *of, enum kind kind, struct attempt *attempt,
                               struct sl_error *err) {
    struct sl_argv words = {0};
    attempt->said = open_memstream(&attempt->text, &attempt->n_text);
    enum sl_status status =
        attempt->said ? words_of_kind(of, kind, &words, err) : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    if (status == SL_OK) {
        add_word(&words, "--check");
        status = check_words(&words, err);
    }
    SL_THEN(status, sl_child_start(&attempt->child, "check", words.list, err));
    sl_argv_cleanup(&words);
    if (status != SL_OK && attempt->said) {
        fclose(attempt->said);
        free(attempt->text);
    }
    return status;
}

enum sl_status sl_argv_try(const struct sl_cluster_origin *of, struct sl_error *err) {
    struct attempt *attempts = calloc(N_KINDS, sizeof *attempts);
    size_t n = 0;
    SL_FAIL_IF(!attempts, err, SL_ERR_EXHAUSTED, "out of memory");
    enum sl_status status = SL_OK;
    for (enum kind kind = COORDINATOR; kind < N_KINDS && status == SL_OK; kind++) {
        if (is_wanted(of->config, kind)) {
            status = try_kind(of, kind, &attempts[n], err);
            n += status == SL_OK;
        }
    }
    enum sl_status waited = wait_for_all(attempts, n, status == SL_OK ? err : NULL);
    SL_THEN(status, waited);
    for (size_t i = 0; i < n; i++) {
        struct attempt *attempt = &attempts[i];
        bool fine = WIFEXITED(attempt->child.wait_status) && WEXITSTATUS(attempt->child.wait_status) == 0;
        fclose(attempt->said);
        if (status == SL_OK && !fine) {
            status = attempt->text ? refusal(attempt, err) : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
        }
        sl_child_cleanup(&attempt->child);
        free(attempt->text);
    }
    free(attempts);
    return status;
}
