// SPDX-License-Identifier: Apache-2.0
// Purpose: checks of `sluice doctor` that are made to fail: shared memory of killed processes, certificates that end, ports in use.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cli/doctor/checks.h"
#include "tests/unit/temp_folder.h"

static const struct sl_finding *only(const struct sl_findings *findings) {
    assert_int_equal(findings->n, 1);
    return &findings->rows[0];
}

// --- shared memory of killed processes -------------------------------------------------------------------------------

// Makes a segment whose last change is `age_s` old. Returns its open descriptor.
static int make_segment(const char *folder, const char *name, int age_s) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    char bytes[8192];
    memset(bytes, 1, sizeof bytes);
    assert_true(fd >= 0 && write(fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes);
    const struct timespec then = {.tv_sec = time(NULL) - age_s}, times[2] = {then, then};
    assert_int_equal(futimens(fd, times), 0);
    return fd;
}

static bool is_there(const char *folder, const char *name) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void test_segments_of_dead_processes_alone_are_removed(void **state) {
    (void)state;
    struct temp_folder folder = temp_folder_create();
    struct sl_findings findings = {0};
    close(make_segment(folder.path, "ucx_shm_posix_dead", 3600));
    close(make_segment(folder.path, "ucx_shm_posix_young", 1));
    close(make_segment(folder.path, "sem.other", 3600));
    const int opened = make_segment(folder.path, "ucx_shm_posix_open", 3600);
    const int mapped = make_segment(folder.path, "ucx_shm_posix_mapped", 3600);
    void *memory = mmap(NULL, 8192, PROT_READ, MAP_SHARED, mapped, 0);
    assert_true(memory != MAP_FAILED);
    close(mapped);

    sl_doctor_segments(&findings, folder.path, false);
    assert_int_equal(only(&findings)->health, SL_HEALTH_WARNING);
    assert_non_null(strstr(only(&findings)->text, "1 segments"));
    assert_non_null(strstr(only(&findings)->text, "8192 bytes"));
    assert_string_equal(only(&findings)->remedy, "sluice doctor --clean");
    assert_true(is_there(folder.path, "ucx_shm_posix_dead"));
    sl_findings_cleanup(&findings);

    sl_doctor_segments(&findings, folder.path, true);
    assert_int_equal(only(&findings)->health, SL_HEALTH_OK);
    assert_non_null(strstr(only(&findings)->text, "removed 1"));
    assert_false(is_there(folder.path, "ucx_shm_posix_dead"));
    static const char *const kept[] = {"ucx_shm_posix_young", "ucx_shm_posix_open", "ucx_shm_posix_mapped",
                                       "sem.other"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        assert_true(is_there(folder.path, kept[i]));
    }
    sl_findings_cleanup(&findings);

    close(opened);
    munmap(memory, 8192);
    sl_doctor_segments(&findings, folder.path, true);
    assert_non_null(strstr(only(&findings)->text, "removed 2"));
    sl_findings_cleanup(&findings);
    temp_folder_destroy(&folder);
}

// --- certificates ----------------------------------------------------------------------------------------------------

static void write_certificate(FILE *file, long end_s) {
    X509 *certificate = X509_new();
    EVP_PKEY *key = EVP_RSA_gen(2048);
    assert_true(certificate && key);
    X509_gmtime_adj(X509_getm_notBefore(certificate), end_s - 864000);
    X509_gmtime_adj(X509_getm_notAfter(certificate), end_s);
    assert_int_equal(X509_set_pubkey(certificate, key), 1);
    assert_true(X509_sign(certificate, key, EVP_sha256()) > 0);
    assert_int_equal(PEM_write_X509(file, certificate), 1);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

static void test_certificates_that_end(void **state) {
    (void)state;
    enum { DAY_S = 86400 };
    static const struct {
        long first_s, second_s; // ends of a chain; 0: no second
        enum sl_health health;
        const char *text;
    } rows[] = {
        {100 * DAY_S + 60, 0, SL_HEALTH_OK, "ends in 100 days"},
        {13 * DAY_S + 60, 0, SL_HEALTH_WARNING, "ends in 13 days"},
        {100 * DAY_S, 2 * DAY_S + 60, SL_HEALTH_WARNING, "ends in 2 days"}, // the first one to end counts
        {-3 * DAY_S - 60, 0, SL_HEALTH_FAILED, "ended 3 days ago"},
    };
    struct temp_folder folder = temp_folder_create();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_findings findings = {0};
        char path[300];
        snprintf(path, sizeof path, "%s/worker.pem", folder.path);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        write_certificate(file, rows[i].first_s);
        if (rows[i].second_s) {
            write_certificate(file, rows[i].second_s);
        }
        fclose(file);
        sl_doctor_certificates(&findings, i % 2 ? path : folder.path);
        assert_int_equal(only(&findings)->health, rows[i].health);
        assert_non_null(strstr(only(&findings)->text, rows[i].text));
        assert_true((rows[i].health == SL_HEALTH_OK) == (only(&findings)->remedy[0] == '\0'));
        assert_true((rows[i].health == SL_HEALTH_FAILED) == (sl_findings_failed(&findings) != NULL));
        sl_findings_cleanup(&findings);
    }
    // `sluice up` keeps the authority of its folder: one that has ended stops it.
    char from[300], to[300];
    snprintf(from, sizeof from, "%s/worker.pem", folder.path);
    snprintf(to, sizeof to, "%s/ca.pem", folder.path);
    assert_int_equal(rename(from, to), 0);
    const struct sl_cluster_config config = {.host = "127.0.0.1", .tls = folder.path};
    struct sl_error err = {0};
    assert_int_equal(sl_doctor_before_up(&config, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "ca.pem ended 3 days ago"));
    struct sl_findings findings = {0};
    static const char *const none[] = {"/nonexistent", "/dev/null",
                                       "/proc/self/fd"}; // no file, and no certificate in it
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        sl_doctor_certificates(&findings, none[i]);
        assert_int_equal(only(&findings)->health, SL_HEALTH_FAILED);
        sl_findings_cleanup(&findings);
    }
    temp_folder_destroy(&folder);
}

// --- ports and limits ------------------------------------------------------------------------------------------------

static void test_a_port_in_use(void **state) {
    (void)state;
    struct sl_findings findings = {0};
    struct sl_error err = {0};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&address, n) == 0 && listen(fd, 1) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &n), 0);
    sl_doctor_port(&findings, "127.0.0.1", ntohs(address.sin_port), "--port");
    assert_int_equal(only(&findings)->health, SL_HEALTH_FAILED);
    assert_non_null(strstr(only(&findings)->text, "Address already in use"));
    struct sl_cluster_config config = {.host = "127.0.0.1", .http_port = ntohs(address.sin_port), .has_gateway = true};
    assert_int_equal(sl_doctor_before_up(&config, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "--http-port another port"));
    config.host = "192.0.2.1"; // an address for documentation: no machine has it
    assert_int_equal(sl_doctor_before_up(&config, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "Remedy: --host"));
    config.has_gateway = false; // then it is not needed
    assert_int_equal(sl_doctor_before_up(&config, &err), SL_OK);
    close(fd);
    sl_findings_cleanup(&findings);
    sl_doctor_port(&findings, "127.0.0.1", ntohs(address.sin_port), "--port");
    assert_int_equal(only(&findings)->health, SL_HEALTH_OK);
    sl_findings_cleanup(&findings);
}

static void test_memory_that_is_not_there(void **state) {
    (void)state;
    struct sl_findings findings = {0};
    const struct sl_doctor_need need = {.arena_bytes = INT64_C(1) << 44, .n_workers = 3};
    sl_doctor_memory(&findings, &need);
    sl_doctor_shm(&findings, &need);
    assert_int_equal(findings.n, 3);
    assert_int_equal(findings.rows[0].health, SL_HEALTH_FAILED);
    assert_non_null(strstr(findings.rows[0].remedy, "--arena"));
    assert_int_equal(findings.rows[2].health, SL_HEALTH_FAILED);
    assert_non_null(strstr(findings.rows[2].remedy, "--shm-size"));
    sl_findings_cleanup(&findings);
}

static void test_few_open_files(void **state) {
    (void)state;
    const pid_t pid = fork();
    if (pid == 0) { // a hard limit cannot be raised again
        struct sl_findings findings = {0};
        const struct rlimit few = {64, 64};
        setrlimit(RLIMIT_NOFILE, &few);
        sl_doctor_limits(&findings);
        const struct sl_finding *failed = sl_findings_failed(&findings);
        _exit(failed && strcmp(failed->check, "open files") == 0 && strstr(failed->remedy, "ulimit") ? 0 : 1);
    }
    int status = 1;
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segments_of_dead_processes_alone_are_removed),
        cmocka_unit_test(test_certificates_that_end),
        cmocka_unit_test(test_a_port_in_use),
        cmocka_unit_test(test_memory_that_is_not_there),
        cmocka_unit_test(test_few_open_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
