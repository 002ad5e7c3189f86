// SPDX-License-Identifier: Apache-2.0
// Certificates that were taken back, by lists that change, are damaged, or are not the authority's.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/unit/scarce.h"
#include "tests/unit/temp_folder.h"
#include "net/trust/revocation.h"

#define DEADLINE_MS 10000

static struct temp_folder folder;
static char ca[160], list[160];
static struct sl_tls_files files = {.ca = ca, .certificate = "", .key = "", .revoked = list};

static void make(const char *what) {
    char command[512];
    snprintf(command, sizeof command, "tools/test-ca.sh %s %s", folder.path, what);
    assert_int_equal(system(command), 0);
}

static int setup(void **state) {
    (void)state;
    folder = temp_folder_create();
    snprintf(ca, sizeof ca, "%s/ca.pem", folder.path);
    snprintf(list, sizeof list, "%s/revoked.pem", folder.path);
    make("worker/a worker/b -");
    return 0;
}

static int teardown(void **state) {
    (void)state;
    temp_folder_destroy(&folder);
    return 0;
}

static char *text_of(const char *name, size_t *bytes_out) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder.path, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1, 65536);
    assert_non_null(text);
    *bytes_out = fread(text, 1, 65535, file);
    fclose(file);
    return text;
}

static enum sl_status check(struct sl_revocations *revocations, const char *name, struct sl_error *err) {
    size_t bytes;
    char *pem = text_of(name, &bytes);
    enum sl_status status = sl_revocations_check_chain(revocations, pem, bytes, err);
    free(pem);
    return status;
}

static struct sl_revocations *open_list(void) {
    struct sl_revocations *revocations = NULL;
    struct sl_error err = {0};
    if (sl_revocations_open(&files, &revocations, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return revocations;
}

static void test_revocation_is_of_the_one_that_was_taken_back(void **state) {
    (void)state;
    struct sl_error err = {0};
    make("-worker/a");
    struct sl_revocations *revocations = open_list();
    assert_int_equal(check(revocations, "worker-a.pem", &err), SL_ERR_DENIED);
    assert_non_null(strstr(err.text, "was revoked"));
    assert_int_equal(check(revocations, "worker-b.pem", &err), SL_OK);
    assert_int_equal(check(revocations, "ca.pem", &err), SL_OK);
    sl_revocations_close(&revocations);
    assert_null(revocations);
    sl_revocations_close(&revocations);
}

// An authority may list what it no longer revokes.
static void test_revocation_may_be_taken_back(void **state) {
    (void)state;
    struct sl_error err = {0};
    char command[300];
    make("-worker/a");
    snprintf(command, sizeof command,
             "sed -i 's/^\\(R\t[^\t]*\t[0-9]*Z\\)/\\1,removeFromCRL/' %s/index.txt && grep -q remove %s/index.txt",
             folder.path, folder.path);
    assert_int_equal(system(command), 0);
    make("-");
    struct sl_revocations *revocations = open_list();
    assert_int_equal(check(revocations, "worker-a.pem", &err), SL_OK);
    sl_revocations_close(&revocations);
}

static void test_revocation_without_a_list_is_of_nobody(void **state) {
    (void)state;
    struct sl_tls_files none = {.ca = ca, .revoked = ""};
    struct sl_revocations *revocations = (struct sl_revocations *)&none;
    struct sl_error err = {0};
    assert_int_equal(sl_revocations_open(&none, &revocations, &err), SL_OK);
    assert_null(revocations);
    assert_int_equal(check(revocations, "worker-a.pem", &err), SL_OK);
}

static enum sl_status becomes(struct sl_revocations *revocations, const char *name, enum sl_status wanted) {
    struct sl_error err = {0};
    int64_t deadline = sl_deadline_in_ms(DEADLINE_MS);
    while (check(revocations, name, &err) != wanted && sl_now_ns() < deadline) {
        sl_sleep_ms(20);
    }
    return check(revocations, name, &err);
}

static void test_revocation_follows_its_file(void **state) {
    (void)state;
    struct sl_error err = {0};
    struct sl_revocations *revocations = open_list();
    assert_int_equal(check(revocations, "worker-a.pem", &err), SL_OK);
    make("-worker/a");
    assert_int_equal(becomes(revocations, "worker-a.pem", SL_ERR_DENIED), SL_ERR_DENIED);
    temp_folder_write_text(&folder, "revoked.pem", "nonsense");
    sl_sleep_ms(1100);
    assert_int_equal(check(revocations, "worker-a.pem", &err), SL_ERR_DENIED); // as before
    assert_int_equal(remove(list), 0);
    sl_sleep_ms(1100);
    assert_int_equal(check(revocations, "worker-a.pem", &err), SL_ERR_DENIED);
    assert_int_equal(check(revocations, "worker-b.pem", &err), SL_OK);
    make("-worker/b");
    assert_int_equal(becomes(revocations, "worker-b.pem", SL_ERR_DENIED), SL_ERR_DENIED);
    sl_revocations_close(&revocations);
}

X509_CRL *__real_PEM_read_bio_X509_CRL(BIO *file, X509_CRL **into, pem_password_cb *password, void *arg);
X509_CRL *__wrap_PEM_read_bio_X509_CRL(BIO *file, X509_CRL **into, pem_password_cb *password, void *arg);

static atomic_bool reads_long, is_reading, was_waited_for;

X509_CRL *__wrap_PEM_read_bio_X509_CRL(BIO *file, X509_CRL **into, pem_password_cb *password, void *arg) {
    for (const int64_t end_ns = sl_deadline_in_ms(DEADLINE_MS); atomic_load(&reads_long); sl_sleep_ms(1)) {
        atomic_store(&is_reading, true);
        if (sl_now_ns() >= end_ns) {
            atomic_store(&was_waited_for, true);
            break;
        }
    }
    return __real_PEM_read_bio_X509_CRL(file, into, password, arg);
}

static void *await_edition(void *revocations) {
    const uint64_t before = sl_revocations_edition(revocations);
    const int64_t end_ns = sl_deadline_in_ms(3 * DEADLINE_MS);
    while (sl_revocations_edition(revocations) == before && sl_now_ns() < end_ns) {
        sl_sleep_ms(1);
    }
    return NULL;
}

// Lists may be long. A thread that handles messages does not wait until another one has read them.
static void test_revocation_is_read_by_one_and_awaited_by_none(void **state) {
    (void)state;
    pthread_t reader;
    struct sl_revocations *revocations = open_list();
    const uint64_t before = sl_revocations_edition(revocations);
    atomic_store(&reads_long, true);
    assert_int_equal(pthread_create(&reader, NULL, await_edition, revocations), 0);
    make("-worker/a");
    for (const int64_t end_ns = sl_deadline_in_ms(DEADLINE_MS); !atomic_load(&is_reading); sl_sleep_ms(1)) {
        assert_true(sl_now_ns() < end_ns);
    }
    assert_int_equal(sl_revocations_edition(revocations), before);
    assert_false(atomic_load(&was_waited_for));
    atomic_store(&reads_long, false);
    pthread_join(reader, NULL);
    assert_int_equal(sl_revocations_edition(revocations), before + 1);
    sl_revocations_close(&revocations);
}

static void refused(const char *word) {
    struct sl_revocations *revocations = NULL;
    struct sl_error err = {0};
    assert_int_not_equal(sl_revocations_open(&files, &revocations, &err), SL_OK);
    assert_null(revocations);
    assert_non_null(strstr(err.text, list));
    if (!strstr(err.text, word)) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, word);
    }
}

static void test_revocation_is_by_the_authority_alone(void **state) {
    (void)state;
    size_t bytes;
    char command[512];
    struct temp_folder other = temp_folder_create();
    snprintf(command, sizeof command, "tools/test-ca.sh %s worker/a -worker/a && cat %s/revoked.pem >>%s", other.path,
             other.path, list);
    assert_int_equal(system(command), 0); // after a list that is right
    refused("no authority of --tls-ca has signed");
    temp_folder_destroy(&other);
    make("-");
    char *text = text_of("revoked.pem", &bytes);
    char *middle = strchr(text, '\n') + 40;
    *middle = *middle == 'A' ? 'B' : 'A';
    temp_folder_write_text(&folder, "revoked.pem", text);
    refused("");
    free(text);
    temp_folder_write_text(&folder, "revoked.pem", "");
    refused("not a file of CRLs");
    text = text_of("worker-a.pem", &bytes);
    temp_folder_write_text(&folder, "revoked.pem", text);
    free(text);
    refused("not a file of CRLs");
    assert_int_equal(remove(list), 0);
    refused("No such file");
}

static void *read_pem(const char *path, const char *name, void *(*read)(FILE *file)) {
    char whole[200];
    snprintf(whole, sizeof whole, "%s/%s", path, name);
    FILE *file = fopen(whole, "r");
    assert_non_null(file);
    void *made = read(file);
    fclose(file);
    assert_non_null(made);
    return made;
}

static void *read_certificate(FILE *file) {
    return PEM_read_X509(file, NULL, NULL, NULL);
}

static void *read_key(FILE *file) {
    return PEM_read_PrivateKey(file, NULL, NULL, NULL);
}

// Writes a list that an authority signs: its own, in which it names a certificate of another issuer, or one in the other's name.
static void write_list(const char *authority, X509 *certificate, bool is_indirect) {
    X509 *signer = read_pem(authority, "ca.pem", read_certificate);
    EVP_PKEY *key = read_pem(authority, "ca.key", read_key);
    const X509_NAME *issuer = X509_get_issuer_name(certificate);
    X509_CRL *made = X509_CRL_new();
    X509_REVOKED *entry = X509_REVOKED_new();
    ASN1_TIME *now = X509_time_adj_ex(NULL, 0, 0, NULL), *later = X509_time_adj_ex(NULL, 1, 0, NULL);
    assert_true(X509_CRL_set_version(made, X509_CRL_VERSION_2) && X509_CRL_set1_lastUpdate(made, now) &&
                X509_CRL_set1_nextUpdate(made, later) &&
                X509_CRL_set_issuer_name(made, is_indirect ? X509_get_subject_name(signer) : issuer) &&
                X509_REVOKED_set_serialNumber(entry, (ASN1_INTEGER *)X509_get0_serialNumber(certificate)) &&
                X509_REVOKED_set_revocationDate(entry, now));
    GENERAL_NAMES *names = sk_GENERAL_NAME_new_null();
    GENERAL_NAME *name = GENERAL_NAME_new();
    GENERAL_NAME_set0_value(name, GEN_DIRNAME, X509_NAME_dup(issuer));
    ISSUING_DIST_POINT point = {.indirectCRL = 0xff};
    assert_true(sk_GENERAL_NAME_push(names, name));
    assert_true(!is_indirect || (X509_REVOKED_add1_ext_i2d(entry, NID_certificate_issuer, names, 1, 0) == 1 &&
                                 X509_CRL_add1_ext_i2d(made, NID_issuing_distribution_point, &point, 1, 0) == 1));
    assert_true(X509_CRL_add0_revoked(made, entry) && X509_CRL_sort(made) && X509_CRL_sign(made, key, EVP_sha256()));
    FILE *file = fopen(list, "w");
    assert_non_null(file);
    assert_true(PEM_write_X509_CRL(file, made));
    fclose(file);
    GENERAL_NAMES_free(names);
    ASN1_TIME_free(now);
    ASN1_TIME_free(later);
    X509_CRL_free(made);
    EVP_PKEY_free(key);
    X509_free(signer);
}

// Each of two authorities in --tls-ca revokes its own certificates only.
static void test_revocation_is_by_the_issuer(void **state) {
    (void)state;
    struct sl_error err = {0};
    char command[640];
    struct temp_folder other = temp_folder_create();
    snprintf(command, sizeof command, "CLUSTER=other tools/test-ca.sh %s worker/c && cat %s/ca.pem >>%s", other.path,
             other.path, ca);
    assert_int_equal(system(command), 0);
    X509 *ours = read_pem(folder.path, "worker-a.pem", read_certificate),
         *theirs = read_pem(other.path, "worker-c.pem", read_certificate);
    write_list(other.path, theirs, true); // it may name its own so
    struct sl_revocations *revocations = open_list();
    assert_int_equal(sl_revocations_check(revocations, theirs, &err), SL_ERR_DENIED);
    sl_revocations_close(&revocations);
    write_list(other.path, ours, true);
    revocations = open_list();
    assert_int_equal(sl_revocations_check(revocations, ours, &err), SL_OK);
    sl_revocations_close(&revocations);
    write_list(other.path, ours, false);
    refused("no authority of --tls-ca has signed");
    write_list(folder.path, ours, false); // the same list, signed by its issuer
    revocations = open_list();
    assert_int_equal(sl_revocations_check(revocations, ours, &err), SL_ERR_DENIED);
    sl_revocations_close(&revocations);
    X509_free(ours);
    X509_free(theirs);
    temp_folder_destroy(&other);
}

static void test_revocation_past_its_day_is_used(void **state) {
    (void)state;
    struct sl_error err = {0};
    make("-worker/a");
    char command[640];
    snprintf(
        command, sizeof command,
        "cd %s && printf '[ca]\\ndefault_ca = here\\n[here]\\ndatabase = index.txt\\ncrlnumber = crlnumber\\n' >c && "
        "openssl ca -config c -gencrl -md sha256 -crl_lastupdate 20200101000000Z -crl_nextupdate 20200102000000Z "
        "-cert ca.pem -keyfile ca.key -out revoked.pem 2>log",
        folder.path);
    assert_int_equal(system(command), 0);
    struct sl_revocations *revocations = open_list();
    assert_int_equal(check(revocations, "worker-a.pem", &err), SL_ERR_DENIED);
    assert_int_equal(check(revocations, "worker-b.pem", &err), SL_OK);
    sl_revocations_close(&revocations);
}

static void test_revocation_looks_at_every_certificate_of_a_chain(void **state) {
    (void)state;
    struct sl_error err = {0};
    size_t n_a, n_b;
    make("-worker/a");
    struct sl_revocations *revocations = open_list();
    char *a = text_of("worker-a.pem", &n_a), *b = text_of("worker-b.pem", &n_b), *both = calloc(1, n_a + n_b + 1);
    memcpy(both, b, n_b);
    memcpy(both + n_b, a, n_a);
    assert_int_equal(sl_revocations_check_chain(revocations, both, n_b, &err), SL_OK);
    assert_int_equal(sl_revocations_check_chain(revocations, both, n_b + n_a, &err), SL_ERR_DENIED);
    assert_int_equal(sl_revocations_check_chain(revocations, "", 0, &err), SL_ERR_DENIED); // nothing to look up
    free(a);
    free(b);
    free(both);
    sl_revocations_close(&revocations);
}

static enum sl_status make_one(void *arg, struct sl_error *err) {
    return sl_revocations_open(&files, arg, err);
}

static void test_revocation_without_memory_is_refused(void **state) {
    (void)state;
    struct sl_revocations *revocations = NULL;
    assert_in_range(assert_refused_without_memory(make_one, &revocations), 3, 10);
    sl_revocations_close(&revocations);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_revocation_is_of_the_one_that_was_taken_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_revocation_may_be_taken_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_revocation_without_a_list_is_of_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(test_revocation_follows_its_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_revocation_is_read_by_one_and_awaited_by_none, setup, teardown),
        cmocka_unit_test_setup_teardown(test_revocation_is_by_the_authority_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_revocation_is_by_the_issuer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_revocation_past_its_day_is_used, setup, teardown),
        cmocka_unit_test_setup_teardown(test_revocation_looks_at_every_certificate_of_a_chain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_revocation_without_memory_is_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
