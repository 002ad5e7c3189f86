// SPDX-License-Identifier: Apache-2.0
#include "net/trust/validity.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum sl_status sl_certificate_file_end(const char *path, int64_t *end_s_out, struct sl_error *err) {
    FILE *file = fopen(path, "re");
    int64_t end_s = INT64_MAX;
    SL_FAIL_IF(!file, err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    for (X509 *certificate; (certificate = PEM_read_X509(file, NULL, NULL, NULL)) != NULL;) {
        struct tm end;
        if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) == 1 && timegm(&end) < end_s) {
            end_s = timegm(&end);
        }
        X509_free(certificate);
    }
    ERR_clear_error(); // of the end of the file
    fclose(file);
    SL_FAIL_IF(end_s == INT64_MAX, err, SL_ERR_NOT_FOUND, "%s: has no certificate", path);
    *end_s_out = end_s;
    return SL_OK;
}

const char *sl_trust_library_version(void) {
    return OpenSSL_version(OPENSSL_VERSION_STRING);
}
