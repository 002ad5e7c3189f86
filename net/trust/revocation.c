// SPDX-License-Identifier: Apache-2.0
#include "net/trust/revocation.h"

#include <limits.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "net/trust/changing_file.h"

enum { MAX_FILE_BYTES = 16 << 20, LOOK_MS = 50 };

struct sl_revocations {
    char *path, *ca;
    _Atomic uint64_t n_read;    // times that the lists were read
    _Atomic int64_t look_at_ns; // until then n_read needs no lock
    pthread_mutex_t mutex;      // guards the following
    struct sl_changing_file file;
    STACK_OF(X509_CRL) * lists;
};

// ---- the lists -------------------------------------------------------------------------------------------------------

static STACK_OF(X509) * read_authorities(const char *path) {
    STACK_OF(X509) *authorities = sk_X509_new_null();
    BIO *file = BIO_new_file(path, "r");
    X509 *one;
    while (authorities && file && (one = PEM_read_bio_X509(file, NULL, NULL, NULL)) != NULL) {
        if (sk_X509_push(authorities, one) <= 0) {
            X509_free(one);
            break;
        }
    }
    BIO_free(file);
    return authorities;
}

// Returns true when one of the authorities has signed the list and is allowed to sign lists.
static bool is_signed(X509_CRL *list, STACK_OF(X509) * authorities) {
    for (int i = 0; i < sk_X509_num(authorities); i++) {
        X509 *authority = sk_X509_value(authorities, i);
        EVP_PKEY *key = X509_get0_pubkey(authority);
        if (X509_NAME_cmp(X509_get_subject_name(authority), X509_CRL_get_issuer(list)) == 0 && key &&
            (X509_get_key_usage(authority) & KU_CRL_SIGN) != 0 && X509_CRL_verify(list, key) == 1) {
            return true;
        }
    }
    return false;
}

static enum sl_status check_list(const char *path, X509_CRL *list, STACK_OF(X509) * authorities, struct sl_error *err) {
    char issuer[160];
    X509_NAME_oneline(X509_CRL_get_issuer(list), issuer, sizeof issuer);
    SL_FAIL_IF(!is_signed(list, authorities), err, SL_ERR_INVALID,
               "%s: a list of %s, which no authority of --tls-ca has signed", path, issuer);
    const ASN1_TIME *next = X509_CRL_get0_nextUpdate(list);
    if (next && X509_cmp_current_time(next) < 0) {
        sl_log_warn("trust", "%s: the list of %s is past its day, and is used until there is another", path, issuer);
    }
    return SL_OK;
}

static void free_lists(STACK_OF(X509_CRL) * lists) {
    sk_X509_CRL_pop_free(lists, X509_CRL_free);
}

static enum sl_status read_lists(const char *path, BIO *file, STACK_OF(X509) * authorities, STACK_OF(X509_CRL) * lists,
                                 struct sl_error *err) {
    X509_CRL *list;
    while ((list = PEM_read_bio_X509_CRL(file, NULL, NULL, NULL)) != NULL) {
        enum sl_status status = check_list(path, list, authorities, err);
        SL_THEN_FAIL_IF(status, sk_X509_CRL_push(lists, list) <= 0, err, SL_ERR_EXHAUSTED,
                        "%s: no memory for its lists", path);
        SL_TRY_OR(status, X509_CRL_free(list));
    }
    bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE; // as at the end of every file
    return at_end && sk_X509_CRL_num(lists) > 0
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "%s: is not a file of CRLs in PEM, or is damaged", path);
}

// Call under the mutex, or before other threads use it.
static enum sl_status load(struct sl_revocations *revocations, struct sl_error *err) {
    const char *path = revocations->file.path;
    char *text = NULL;
    size_t bytes = 0;
    struct stat about;
    SL_TRY_OR(sl_changing_file_read(&revocations->file, &text, &bytes, &about, err), sl_error_prefix(err, path));
    ERR_clear_error();
    BIO *file = BIO_new_mem_buf(text, (int)bytes);
    STACK_OF(X509) *authorities = read_authorities(revocations->ca);
    STACK_OF(X509_CRL) *lists = sk_X509_CRL_new_null();
    enum sl_status status = file && authorities && lists
                                ? read_lists(path, file, authorities, lists, err)
                                : sl_fail(err, SL_ERR_EXHAUSTED, "%s: no memory for its lists", path);
    ERR_clear_error();
    BIO_free(file);
    free(text);
    sk_X509_pop_free(authorities, X509_free);
    SL_TRY_OR(status, free_lists(lists));
    free_lists(revocations->lists);
    revocations->lists = lists;
    revocations->n_read++;
    sl_changing_file_accept(&revocations->file, &about);
    return SL_OK;
}

// Call under the mutex.
static void look_again(struct sl_revocations *revocations) {
    struct sl_error err;
    if (!sl_changing_file_is_due(&revocations->file)) {
        return;
    }
    if (load(revocations, &err) == SL_OK) {
        sl_log_info("trust", "revoked=%s was read again", revocations->path);
    } else if (sl_changing_file_fail(&revocations->file)) {
        sl_log_warn("trust", "%s; the certificates that were revoked before stay so, and no others", err.text);
    }
}

enum sl_status sl_revocations_open(const struct sl_tls_files *files, struct sl_revocations **revocations_out,
                                   struct sl_error *err) {
    if (!files->revoked || files->revoked[0] == '\0') {
        *revocations_out = NULL;
        return SL_OK;
    }
    struct sl_revocations *revocations = calloc(1, sizeof *revocations);
    if (revocations) {
        revocations->path = strdup(files->revoked);
        revocations->ca = strdup(files->ca);
        revocations->file = (struct sl_changing_file){.path = revocations->path, .max_bytes = MAX_FILE_BYTES};
        pthread_mutex_init(&revocations->mutex, NULL);
    }
    SL_TRY_OR(revocations && revocations->path && revocations->ca
                  ? load(revocations, err)
                  : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %s", files->revoked),
              sl_revocations_close(&revocations));
    *revocations_out = revocations;
    return SL_OK;
}

void sl_revocations_close(struct sl_revocations **revocations_inout) {
    SL_TAKE_OR_RETURN(revocations, revocations_inout);
    free_lists(revocations->lists);
    pthread_mutex_destroy(&revocations->mutex);
    free(revocations->path);
    free(revocations->ca);
    free(revocations);
}

uint64_t sl_revocations_edition(struct sl_revocations *revocations) {
    if (!revocations) {
        return 0;
    }
    // While one thread reads the lists, the others go on with the edition before: readers of streams ask at each message.
    if (sl_now_ns() >= atomic_load(&revocations->look_at_ns) && pthread_mutex_trylock(&revocations->mutex) == 0) {
        look_again(revocations);
        atomic_store(&revocations->look_at_ns, sl_deadline_in_ms(LOOK_MS));
        pthread_mutex_unlock(&revocations->mutex);
    }
    return atomic_load(&revocations->n_read);
}

// ---- certificates ----------------------------------------------------------------------------------------------------

// Call under the mutex.
static bool is_revoked(const struct sl_revocations *revocations, X509 *certificate) {
    for (int i = 0; i < sk_X509_CRL_num(revocations->lists); i++) {
        X509_CRL *list = sk_X509_CRL_value(revocations->lists, i);
        X509_REVOKED *entry;
        if (X509_NAME_cmp(X509_CRL_get_issuer(list), X509_get_issuer_name(certificate)) == 0 &&
            X509_CRL_get0_by_cert(list, &entry, certificate) == 1) { // 2: removed from the list again
            return true;
        }
    }
    return false;
}

enum sl_status sl_revocations_check(struct sl_revocations *revocations, const X509 *certificate, struct sl_error *err) {
    if (!revocations) {
        return SL_OK;
    }
    pthread_mutex_lock(&revocations->mutex);
    look_again(revocations);
    bool revoked = is_revoked(revocations, (X509 *)certificate);
    pthread_mutex_unlock(&revocations->mutex);
    if (!revoked) {
        return SL_OK;
    }
    BIGNUM *serial = ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), NULL);
    char *digits = serial ? BN_bn2hex(serial) : NULL;
    sl_fail(err, SL_ERR_DENIED, "the certificate of serial number %.60s was revoked", digits ? digits : "?");
    OPENSSL_free(digits);
    BN_free(serial);
    return SL_ERR_DENIED;
}

enum sl_status sl_revocations_check_chain(struct sl_revocations *revocations, const char *pem, size_t bytes,
                                          struct sl_error *err) {
    if (!revocations) {
        return SL_OK;
    }
    BIO *text = bytes <= INT_MAX ? BIO_new_mem_buf(pem, (int)bytes) : NULL;
    enum sl_status status = SL_OK;
    X509 *certificate;
    int n = 0;
    while (status == SL_OK && text && (certificate = PEM_read_bio_X509(text, NULL, NULL, NULL)) != NULL) {
        status = sl_revocations_check(revocations, certificate, err);
        X509_free(certificate);
        n++;
    }
    BIO_free(text);
    ERR_clear_error();
    return status == SL_OK && n == 0 ? sl_fail(err, SL_ERR_DENIED, "there is no certificate to look up") : status;
}
