// SPDX-License-Identifier: Apache-2.0
// Purpose: certificates for tests, made by tools/test-ca.sh in a folder that goes with the process. Tests run in the source folder.
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "net/trust/tls_files.h"

struct test_files {
    char ca[160], certificate[160], key[160];
    struct sl_tls_files files; // of them
};

// The files of `who`, "worker-a", in a folder.
static inline const struct sl_tls_files *test_files_of(const char *dir, const char *who, struct test_files *at) {
    snprintf(at->ca, sizeof at->ca, "%s/ca.pem", dir);
    snprintf(at->certificate, sizeof at->certificate, "%s/%s.pem", dir, who);
    snprintf(at->key, sizeof at->key, "%s/%s.key", dir, who);
    at->files = (struct sl_tls_files){at->ca, at->certificate, at->key, .revoked = NULL};
    return &at->files;
}

static inline void test_certificates_remove(void) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", getenv("SLUICE_TEST_CERTS"));
    if (system(command) != 0) {
        fprintf(stderr, "left behind: %s\n", getenv("SLUICE_TEST_CERTS"));
    }
}

/*
 * The folder, with certificates of these names ("worker/a client/b"); NULL: they could not be made. Made by the first process of a
 * test; those that it starts find it by the environment.
 */
static inline const char *test_certificates(const char *names) {
    static char dir[64] = "/tmp/sluice-test-certs-XXXXXX";
    const char *made = getenv("SLUICE_TEST_CERTS");
    if (!made) {
        char command[512];
        if (!mkdtemp(dir)) {
            return NULL;
        }
        setenv("SLUICE_TEST_CERTS", dir, 1);
        atexit(test_certificates_remove);
        snprintf(command, sizeof command, "tools/test-ca.sh %s %s", dir, names);
        made = system(command) == 0 ? dir : NULL;
    }
    return made;
}
