// SPDX-License-Identifier: Apache-2.0
#include "client/cli/cluster_tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "base/child.h"

enum { FIXED_WORDS = 5, NAME_BYTES = 48, MAKE_MS = 60000 };

enum sl_status sl_cluster_tls_find(const char *folder, const char *role, const char *name,
                                   struct sl_cluster_tls *tls_out, struct sl_error *err) {
    int longest = snprintf(tls_out->certificate, PATH_MAX, "%s/%s-%s.pem", folder, role, name);
    snprintf(tls_out->key, PATH_MAX, "%s/%s-%s.key", folder, role, name);
    snprintf(tls_out->ca, PATH_MAX, "%s/ca.pem", folder);
    tls_out->files = (struct sl_tls_files){tls_out->ca, tls_out->certificate, tls_out->key, .revoked = NULL};
    return longest < PATH_MAX ? SL_OK : sl_fail(err, SL_ERR_INVALID, "--tls %.200s...: the path is too long", folder);
}

static enum sl_status run_to_end(char *const words[], struct sl_error *err) {
    struct sl_child child;
    SL_TRY(sl_child_start(&child, "certificates", words, err));
    sl_child_wait_end(&child, MAKE_MS, stderr);
    char end[96];
    SL_FAIL_IF(!WIFEXITED(child.wait_status) || WEXITSTATUS(child.wait_status) != 0, err, SL_ERR_IO,
               "--tls: %s %s; its output is above (openssl must be installed)", words[0],
               sl_child_describe_end(&child, end, sizeof end));
    return SL_OK;
}

enum sl_status sl_cluster_tls_make(const char *bin, const char *folder, const struct sl_cluster_names *names,
                                   struct sl_error *err) {
    const struct {
        const char *role;
        int64_t n;
    } roles[] = {{"prefill", names->n_prefill}, {"decode", names->n_decode}, {"kvstore", names->n_kvstore}};
    size_t n_workers = (size_t)(names->n_prefill + names->n_decode + names->n_kvstore), n = 0;
    char **words = calloc(FIXED_WORDS + n_workers + 1, sizeof *words);
    char(*text)[NAME_BYTES] = calloc(n_workers, sizeof *text);
    char program[PATH_MAX];
    enum sl_status status = SL_OK;
    if (!words || !text) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for certificates");
    } else if (snprintf(program, sizeof program, "%s/sluice-test-ca", bin) >= PATH_MAX) {
        status = sl_fail(err, SL_ERR_INVALID, "%.200s...: the path is too long", bin);
    } else {
        words[n++] = program;
        words[n++] = (char *)folder;
        words[n++] = "coordinator/coordinator";
        words[n++] = "operator/local";
        words[n++] = "client/local";
        for (size_t r = 0; r < sizeof roles / sizeof *roles; r++) {
            for (int64_t i = 0; i < roles[r].n; i++) {
                char *name = text[n - FIXED_WORDS];
                snprintf(name, NAME_BYTES, "worker/%s/%s-%lld", roles[r].role, roles[r].role, (long long)i);
                words[n++] = name;
            }
        }
        status = run_to_end(words, err);
    }
    free(text);
    free(words);
    return status;
}
