// SPDX-License-Identifier: Apache-2.0
#include "gateway/https.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "gateway/connections.h"
#include "gateway/head/chunks.h"
#include "net/trust/changing_file.h"

enum { FILE_BYTES = 1 << 20, CHAIN = 16 };

struct pem {
    const char *option;
    struct sl_changing_file file;
    char *text; // content as last read
    size_t n;
    struct stat about;
};

struct sl_https_certificate {
    struct pem files[2];    // the certificate with its chain, and the key, while they are read
    gnutls_datum_t pems[2]; // the last pair that is valid
};

enum { CERTIFICATE, KEY };

// ---- GnuTLS's structures --------------------------------------------------------------------------------------------

struct imported {
    gnutls_pcert_st *list; // allocated by gnutls_malloc
    unsigned n;
    gnutls_privkey_t key;
};

static void release(struct imported *imported) {
    while (imported->n > 0) {
        gnutls_pcert_deinit(&imported->list[--imported->n]);
    }
    gnutls_free(imported->list);
    if (imported->key) {
        gnutls_privkey_deinit(imported->key);
    }
}

static int import(const gnutls_datum_t pems[2], struct imported *imported_out) {
    struct imported imported = {.list = gnutls_malloc(CHAIN * sizeof *imported.list)};
    unsigned n = CHAIN;
    int code = imported.list
                   ? gnutls_pcert_list_import_x509_raw(imported.list, &n, &pems[CERTIFICATE], GNUTLS_X509_FMT_PEM, 0)
                   : GNUTLS_E_MEMORY_ERROR;
    if (code >= 0) {
        imported.n = n;
        code = gnutls_privkey_init(&imported.key);
    }
    if (code >= 0) {
        code = gnutls_privkey_import_x509_raw(imported.key, &pems[KEY], GNUTLS_X509_FMT_PEM, NULL, 0);
    }
    if (code < 0) {
        release(&imported);
        return code;
    }
    *imported_out = imported;
    return code;
}

// Compares the public keys of both. GnuTLS 3.7's own check, of credentials, leaks when it refuses a pair.
static int compare(const struct imported *imported) {
    unsigned char ids[2][64];
    size_t n[2] = {sizeof ids[0], sizeof ids[1]};
    gnutls_pubkey_t of_key;
    int code = gnutls_pubkey_init(&of_key);
    if (code < 0) {
        return code;
    }
    code = gnutls_pubkey_import_privkey(of_key, imported->key, 0, 0);
    if (code >= 0) {
        code = gnutls_pubkey_get_key_id(of_key, 0, ids[KEY], &n[KEY]);
    }
    if (code >= 0) {
        code = gnutls_pubkey_get_key_id(imported->list[0].pubkey, 0, ids[CERTIFICATE], &n[CERTIFICATE]);
    }
    if (code >= 0 && (n[KEY] != n[CERTIFICATE] || memcmp(ids[KEY], ids[CERTIFICATE], n[KEY]) != 0)) {
        code = GNUTLS_E_CERTIFICATE_KEY_MISMATCH;
    }
    gnutls_pubkey_deinit(of_key);
    return code;
}

// ---- the files ------------------------------------------------------------------------------------------------------

static enum sl_status read_pem(struct pem *pem, struct sl_error *err) {
    char *text;
    enum sl_status status = sl_changing_file_read(&pem->file, &text, &pem->n, &pem->about, err);
    if (status == SL_OK) {
        free(pem->text);
        pem->text = text;
    } else {
        char where[512];
        snprintf(where, sizeof where, "%s %s", pem->option, pem->file.path);
        sl_error_prefix(err, where);
    }
    return status;
}

static enum sl_status check_pair(const struct sl_https_certificate *certificate, const gnutls_datum_t pems[2],
                                 struct sl_error *err) {
    struct imported imported;
    int code = import(pems, &imported);
    if (code >= 0) {
        code = compare(&imported);
        release(&imported);
    }
    SL_FAIL_IF(code < 0, err, SL_ERR_INVALID, "--https-cert %s, --https-key %s: %s",
               certificate->files[CERTIFICATE].file.path, certificate->files[KEY].file.path, gnutls_strerror(code));
    return SL_OK;
}

static enum sl_status load(struct sl_https_certificate *certificate, struct sl_error *err) {
    gnutls_datum_t pems[2];
    for (int i = 0; i < 2; i++) {
        struct pem *pem = &certificate->files[i];
        SL_TRY(read_pem(pem, err));
        pems[i] = (gnutls_datum_t){(unsigned char *)pem->text, (unsigned)pem->n};
    }
    SL_TRY(check_pair(certificate, pems, err));
    for (int i = 0; i < 2; i++) {
        struct pem *pem = &certificate->files[i];
        free(certificate->pems[i].data);
        certificate->pems[i] = pems[i];
        pem->text = NULL;
        sl_changing_file_accept(&pem->file, &pem->about);
    }
    return SL_OK;
}

enum sl_status sl_https_certificate_open(const char *certificate_path, const char *key_path,
                                         struct sl_https_certificate **certificate_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_https_certificate, certificate, err, "no memory for a certificate");
    certificate->files[CERTIFICATE] = (struct pem){.option = "--https-cert", .file = {.path = certificate_path}};
    certificate->files[KEY] = (struct pem){.option = "--https-key", .file = {.path = key_path}};
    certificate->files[CERTIFICATE].file.max_bytes = certificate->files[KEY].file.max_bytes = FILE_BYTES;
    SL_TRY_OR(load(certificate, err), sl_https_certificate_close(&certificate));
    *certificate_out = certificate;
    return SL_OK;
}

void sl_https_certificate_close(struct sl_https_certificate **certificate_ptr) {
    SL_TAKE_OR_RETURN(certificate, certificate_ptr);
    for (int i = 0; i < 2; i++) {
        free(certificate->files[i].text);
        free(certificate->pems[i].data);
    }
    free(certificate);
}

// ---- handshakes -----------------------------------------------------------------------------------------------------

static void look_again(struct sl_https_certificate *certificate) {
    bool due = sl_changing_file_is_due(&certificate->files[CERTIFICATE].file);
    due |= sl_changing_file_is_due(&certificate->files[KEY].file);
    struct sl_error err;
    if (!due) {
        return;
    }
    if (load(certificate, &err) == SL_OK) {
        sl_log_info("gateway", "the certificate of HTTPS has been replaced");
        return;
    }
    bool is_news = sl_changing_file_fail(&certificate->files[CERTIFICATE].file);
    is_news |= sl_changing_file_fail(&certificate->files[KEY].file);
    if (is_news) {
        sl_log_error("gateway", "%s: the previous certificate stays in use", err.text);
    }
}

int sl_https_give_certificate(gnutls_session_t session, const struct gnutls_cert_retr_st *, gnutls_pcert_st **list_out,
                              unsigned *n_out, gnutls_ocsp_data_st **ocsp_out, unsigned *n_ocsp_out,
                              gnutls_privkey_t *key_out, unsigned *flags_out) {
    struct sl_https_certificate *certificate = sl_http_connections_context(gnutls_session_get_ptr(session));
    if (!certificate) {
        return -1;
    }
    look_again(certificate);
    struct imported imported;
    if (import(certificate->pems, &imported) < 0) {
        return -1;
    }
    *list_out = imported.list;
    *n_out = imported.n;
    *ocsp_out = NULL;
    *n_ocsp_out = 0;
    *key_out = imported.key;
    *flags_out = GNUTLS_CERT_RETR_DEINIT_ALL;
    return 0;
}

// ---- bytes of connections --------------------------------------------------------------------------------------------

typedef ssize_t record_recv_fn(gnutls_session_t session, void *to, size_t n);

// Follows chunks: see gateway/head/chunks.h.
__attribute__((visibility("default"))) ssize_t gnutls_record_recv(gnutls_session_t session, void *to, size_t n) {
    static _Atomic(void *) known;
    record_recv_fn *next;
    void *found = atomic_load(&known);
    if (!found) {
        found = dlsym(RTLD_NEXT, "gnutls_record_recv");
        atomic_store(&known, found);
    }
    memcpy(&next, &found, sizeof next); // ISO C has no conversion between the two kinds of pointers
    const ssize_t n_got = next(session, to, n);
    struct sl_chunks *chunks = n_got > 0 ? sl_chunks_of(gnutls_transport_get_int(session)) : NULL;
    if (chunks) {
        sl_chunks_follow(chunks, to, (size_t)n_got);
    }
    return n_got;
}
