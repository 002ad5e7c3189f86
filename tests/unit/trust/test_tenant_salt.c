// SPDX-License-Identifier: Apache-2.0
// Purpose: salts are those of their tenant and secret; a secret outlives its process in a file that only its user may read.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/temp_folder.h"
#include "net/trust/tenant_salt.h"

static struct sl_salt_secret open_secret(const char *path, bool has_certificates) {
    struct sl_salt_secret secret = {0};
    struct sl_error err = {0};
    if (sl_salt_secret_open(path, has_certificates, &secret, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return secret;
}

static struct sl_hash128 salt_of(const struct sl_salt_secret *secret, const char *tenant) {
    struct sl_hash128 salt;
    assert_int_equal(sl_tenant_salt(secret, tenant, &salt, NULL), SL_OK);
    return salt;
}

static void test_salt_is_hmac_sha256(void **state) {
    (void)state;
    // Computed with Python's hmac.new(bytes(range(32)), b"sluice prefix salt of acme", "sha256").digest()[:16]
    static const struct sl_hash128 expected = {
        {0xa0, 0x73, 0x75, 0xea, 0xa9, 0x22, 0x46, 0x83, 0x45, 0x5d, 0xe4, 0x54, 0xc4, 0xcc, 0x0e, 0x98}};
    struct sl_salt_secret secret = {.tells_apart = true};
    for (size_t i = 0; i < sizeof secret.bytes; i++) {
        secret.bytes[i] = (uint8_t)i;
    }
    struct sl_hash128 salt = salt_of(&secret, "acme"), other = salt_of(&secret, "acme2"),
                      operators = salt_of(&secret, "");
    assert_memory_equal(&salt, &expected, sizeof salt);
    assert_false(sl_hash128_equals(&salt, &other));
    assert_false(sl_hash128_equals(&salt, &operators));
    secret.bytes[31] ^= 1;
    other = salt_of(&secret, "acme");
    assert_false(sl_hash128_equals(&salt, &other));
}

static void test_salt_secret_without_a_file(void **state) {
    (void)state;
    struct sl_salt_secret nobody = open_secret(NULL, false), one = open_secret(NULL, true), two = open_secret("", true);
    struct sl_hash128 salt = salt_of(&nobody, "acme");
    assert_true(sl_hash128_is_zero(&salt));
    assert_memory_not_equal(one.bytes, two.bytes, sizeof one.bytes);
}

static void refused(const char *path, enum sl_status expected, const char *text) {
    struct sl_salt_secret secret;
    struct sl_error err = {0};
    assert_int_equal(sl_salt_secret_open(path, true, &secret, &err), expected);
    if (!strstr(err.text, text)) {
        fail_msg("'%s' is not in '%s'", text, err.text);
    }
}

static void test_salt_secret_in_a_file(void **state) {
    (void)state;
    struct temp_folder folder = temp_folder_create();
    char path[128];
    snprintf(path, sizeof path, "%s/salt", folder.path);
    struct stat about;
    char left[64]; // by a crash of a process with our number
    snprintf(left, sizeof left, "salt.%ld", (long)getpid());
    temp_folder_write(&folder, left, "half", 4);
    struct sl_salt_secret made = open_secret(path, false);
    assert_true(made.tells_apart); // a caller that names a file needs that file
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_int_equal(about.st_nlink, 1);
    struct sl_salt_secret again = open_secret(path, true);
    assert_memory_equal(made.bytes, again.bytes, sizeof made.bytes);

    assert_int_equal(chmod(path, 0640), 0);
    refused(path, SL_ERR_PRECONDITION, "chmod 600");
    assert_int_equal(chmod(path, 0600), 0);
    temp_folder_write(&folder, "salt", made.bytes, 31);
    refused(path, SL_ERR_PRECONDITION, "not a file of 32 bytes");
    temp_folder_write(&folder, "salt", "0123456789abcdef0123456789abcdef0", 33);
    refused(path, SL_ERR_PRECONDITION, "not a file of 32 bytes");
    refused("/dev/null/salt", SL_ERR_IO, "/dev/null/salt");
    temp_folder_destroy(&folder); // which has nothing else in it
}

// As an unprivileged user in group 65532, returns the status of opening the file.
static int opened_by_group(const char *path) {
    pid_t child = fork();
    if (child == 0) {
        struct sl_salt_secret secret;
        struct sl_error err = {0};
        bool become = setresgid(65532, 65532, 65532) == 0 && setresuid(65532, 65532, 65532) == 0;
        _exit(!become ? 99 : sl_salt_secret_open(path, true, &secret, &err) == SL_OK ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
}

// As a kubelet mounts a Secret for a user that is not root.
static void test_salt_secret_that_root_hands_over(void **state) {
    (void)state;
    if (geteuid() != 0) {
        skip();
    }
    struct temp_folder folder = temp_folder_create();
    char path[128];
    snprintf(path, sizeof path, "%s/salt", folder.path);
    open_secret(path, true);
    assert_int_equal(chmod(folder.path, 0755), 0);
    assert_int_equal(chown(path, 0, 65532), 0);
    assert_int_equal(chmod(path, 0440), 0);
    assert_int_equal(opened_by_group(path), 0);
    assert_int_equal(chmod(path, 0460), 0); // its group could write it
    assert_int_equal(opened_by_group(path), 1);
    assert_int_equal(chmod(path, 0444), 0); // users outside of the group could read it
    assert_int_equal(opened_by_group(path), 1);
    assert_int_equal(chmod(path, 0440), 0);
    assert_int_equal(chown(path, 65532, 65532), 0); // its own, which it could have kept to itself
    assert_int_equal(opened_by_group(path), 1);
    temp_folder_destroy(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_salt_is_hmac_sha256),
        cmocka_unit_test(test_salt_secret_without_a_file),
        cmocka_unit_test(test_salt_secret_in_a_file),
        cmocka_unit_test(test_salt_secret_that_root_hands_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
