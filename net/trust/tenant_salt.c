// SPDX-License-Identifier: Apache-2.0
/*
 * Salts of tenants. See tenant_salt.h.
 *
 * Design: a new secret is written to a file of a temporary name, which is linked to its name when it is complete. So when
 *         two coordinators start at once, one makes the file and both read the same secret.
 */
#include "net/trust/tenant_salt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

#define LABEL "sluice prefix salt of " // keeps the salts apart from anything else derived from the secret

static enum sl_status draw(struct sl_salt_secret *secret, struct sl_error *err) {
    SL_FAIL_IF(getrandom(secret->bytes, sizeof secret->bytes, 0) != (ssize_t)sizeof secret->bytes, err, SL_ERR_IO,
               "no random numbers from the kernel: %s", strerror(errno));
    return SL_OK;
}

static enum sl_status failed(const char *path, const char *what, struct sl_error *err) {
    return sl_fail(err, SL_ERR_IO, "--salt-file %s: %s: %s", path, what, strerror(errno));
}

// Returns true if others can use the file. The group may read a file of root: a Secret that a kubelet mounts belongs to
// root, and the reader cannot change that.
static bool others_may_use(const struct stat *about) {
    bool handed_over = about->st_uid == 0 && geteuid() != 0;
    return (about->st_mode & (handed_over ? 037 : 077)) != 0;
}

// Reads the file. SL_ERR_NOT_FOUND: there is none.
static enum sl_status read_file(const char *path, struct sl_salt_secret *secret, struct sl_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return errno == ENOENT ? sl_fail(err, SL_ERR_NOT_FOUND, "--salt-file %s: is not there", path)
                               : failed(path, "cannot be read", err);
    }
    struct stat about;
    ssize_t n = read(fd, secret->bytes, sizeof secret->bytes);
    enum sl_status status = SL_OK;
    if (n < 0 || fstat(fd, &about) != 0) {
        status = failed(path, "cannot be read", err);
    } else if (!S_ISREG(about.st_mode) || about.st_size != (off_t)sizeof secret->bytes ||
               n != (ssize_t)sizeof secret->bytes) {
        status = sl_fail(err, SL_ERR_PRECONDITION,
                         "--salt-file %s: is not a file of %zu bytes; name one that is not there yet", path,
                         sizeof secret->bytes);
    } else if (others_may_use(&about)) {
        status = sl_fail(err, SL_ERR_PRECONDITION,
                         "--salt-file %s: others may use it: chmod 600, and if they have, remove it", path);
    }
    close(fd);
    return status;
}

// Makes the file. SL_ERR_EXISTS: another process has made it meanwhile.
static enum sl_status make_file(const char *path, const struct sl_salt_secret *secret, struct sl_error *err) {
    char temporary[PATH_MAX];
    // Not the process's number: in a container it is always the same, and a crash leaves the file
    SL_FAIL_IF(snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= (int)sizeof temporary, err, SL_ERR_INVALID,
               "--salt-file: the path is too long");
    int fd = mkostemp(temporary, O_CLOEXEC); // of mode 0600
    if (fd < 0) {
        return failed(temporary, "cannot be made", err);
    }
    enum sl_status status =
        write(fd, secret->bytes, sizeof secret->bytes) != (ssize_t)sizeof secret->bytes || fsync(fd) != 0
            ? failed(temporary, "cannot be written", err)
            : SL_OK;
    close(fd);
    if (status == SL_OK && link(temporary, path) != 0) {
        status = errno == EEXIST ? SL_ERR_EXISTS : failed(path, "cannot be made", err);
    }
    unlink(temporary);
    return status;
}

static enum sl_status read_or_make(const char *path, struct sl_salt_secret *secret, struct sl_error *err) {
    enum sl_status status = read_file(path, secret, err);
    if (status != SL_ERR_NOT_FOUND) {
        return status;
    }
    status = draw(secret, err);
    SL_THEN(status, make_file(path, secret, err));
    return status == SL_ERR_EXISTS ? read_file(path, secret, err) : status;
}

enum sl_status sl_salt_secret_open(const char *path, bool has_certificates, struct sl_salt_secret *secret_out,
                                   struct sl_error *err) {
    struct sl_salt_secret secret = {.tells_apart = has_certificates};
    enum sl_status status = SL_OK;
    if (path && path[0] != '\0') {
        secret.tells_apart = true;
        status = read_or_make(path, &secret, err);
    } else if (has_certificates) {
        status = draw(&secret, err);
        sl_log_info("trust", "no --salt-file: prompts through this coordinator do not find what stores have now");
    }
    if (status == SL_OK) {
        *secret_out = secret;
    }
    return status;
}

enum sl_status sl_tenant_salt(const struct sl_salt_secret *secret, const char *tenant, struct sl_hash128 *salt_out,
                              struct sl_error *err) {
    struct sl_hash128 salt = {{0}};
    if (secret->tells_apart) {
        uint8_t text[256], digest[EVP_MAX_MD_SIZE];
        int n = snprintf((char *)text, sizeof text, LABEL "%s", tenant);
        unsigned n_digest = 0;
        if (n < 0 || n >= (int)sizeof text ||
            !HMAC(EVP_sha256(), secret->bytes, (int)sizeof secret->bytes, text, (size_t)n, digest, &n_digest) ||
            n_digest < sizeof salt) {
            return sl_fail(err, SL_ERR_INTERNAL, "no salt for tenant %s: libcrypto's HMAC failed", tenant);
        }
        memcpy(&salt, digest, sizeof salt);
    }
    *salt_out = salt;
    return SL_OK;
}
