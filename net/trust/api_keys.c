// SPDX-License-Identifier: Apache-2.0
#include "net/trust/api_keys.h"

#include <ctype.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/locked.h"
#include "base/log.h"
#include "net/trust/changing_file.h"
#include "net/trust/sha256.h"

enum { MAX_FILE_BYTES = 64 << 20 };

static const int64_t MAX_LIMIT = 1000000000000; // what a double counts without loss

struct sl_api_keys {
    char *path;
    pthread_mutex_t mutex; // guards what follows
    struct sl_api_key *list;
    size_t n;
    struct sl_changing_file file; // the file that the list was read from
    char *text;                   // its content
    size_t n_bytes;
};

// ---- lines ----------------------------------------------------------------------------------------------------------

static bool parse_hash(const char *word, uint8_t hash_out[32]) {
    size_t n;
    return strspn(word, "0123456789abcdef") == 64 && OPENSSL_hexstr2buf_ex(hash_out, 32, &n, word, '\0') == 1;
}

bool sl_tenant_name_is_valid(const char *word) {
    size_t n = strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return n > 0 && word[n] == '\0' && n < SL_TENANT_NAME_BYTES && isalnum((unsigned char)word[0]);
}

const struct sl_api_key sl_api_key_anybody = {
    .max_answers = INT64_MAX, .requests_per_minute = INT64_MAX, .tokens_per_minute = INT64_MAX};

// To add a limit: a row with its name and its member of struct sl_api_key.
static const struct {
    const char *name;
    size_t offset;
} limits[] = {
    {"answers=", offsetof(struct sl_api_key, max_answers)},
    {"requests=", offsetof(struct sl_api_key, requests_per_minute)},
    {"tokens=", offsetof(struct sl_api_key, tokens_per_minute)},
};

static bool parse_limit(const char *word, struct sl_api_key *key) {
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        size_t n = strlen(limits[i].name);
        if (strncmp(word, limits[i].name, n) == 0 && isdigit((unsigned char)word[n])) {
            char *end;
            errno = 0;
            long long value = strtoll(word + n, &end, 10);
            *(int64_t *)((char *)key + limits[i].offset) = value;
            return *end == '\0' && errno == 0 && value > 0 && value <= MAX_LIMIT;
        }
    }
    return false;
}

// Hashes a zero byte and then a tenant's name, or "*": no key begins with a zero byte.
static bool make_tenant_hash(const char *tenant, uint8_t hash_out[32]) {
    char named[1 + SL_TENANT_NAME_BYTES] = "";
    snprintf(named + 1, SL_TENANT_NAME_BYTES, "%s", tenant);
    return sl_sha256(named, sizeof named, hash_out, NULL) == SL_OK;
}

// Parses one line, which it changes; *there_out tells whether the line holds a key.
static enum sl_status parse_line(char *line, bool *there_out, struct sl_api_key *key_out, struct sl_error *err) {
    line[strcspn(line, "#\r")] = '\0';
    char *rest = NULL, *word = strtok_r(line, " \t", &rest);
    *there_out = word != NULL;
    if (!word) {
        return SL_OK;
    }
    *key_out = sl_api_key_anybody;
    bool is_tenants = strcmp(word, "jwt") == 0;
    SL_FAIL_IF(!is_tenants && !parse_hash(word, key_out->hash), err, SL_ERR_INVALID,
               "expected a SHA-256 in 64 small hexadecimal digits, or jwt");
    word = strtok_r(NULL, " \t", &rest);
    SL_FAIL_IF(!word || (!sl_tenant_name_is_valid(word) && !(is_tenants && strcmp(word, "*") == 0)), err,
               SL_ERR_INVALID, "expected a tenant after it: letters, digits, '.', '_', '-'");
    snprintf(key_out->tenant, sizeof key_out->tenant, "%s", word);
    SL_FAIL_IF(is_tenants && !make_tenant_hash(word, key_out->hash), err, SL_ERR_INTERNAL,
               "the hash of a tenant's name failed");
    while ((word = strtok_r(NULL, " \t", &rest))) {
        SL_FAIL_IF(!parse_limit(word, key_out), err, SL_ERR_INVALID,
                   "\"%.40s\": expected answers=N, requests=N or tokens=N", word);
    }
    return SL_OK;
}

static enum sl_status parse_lines(char *text, struct sl_api_key *list, size_t *n_out, struct sl_error *err) {
    size_t n = 0, number = 0;
    for (char *line = text, *next; line; line = next) {
        char *newline = strchr(line, '\n');
        next = newline ? newline + 1 : NULL;
        if (newline) {
            *newline = '\0';
        }
        number++;
        bool there;
        struct sl_error why;
        enum sl_status status = parse_line(line, &there, &list[n], &why);
        SL_FAIL_IF(status != SL_OK, err, status, "line %zu: %s", number, why.text);
        n += there;
    }
    *n_out = n;
    return SL_OK;
}

enum sl_status sl_api_keys_parse(const char *text, size_t n_bytes, struct sl_api_key **list_out, size_t *n_out,
                                 struct sl_error *err) {
    size_t n_lines = 1;
    for (size_t i = 0; i < n_bytes; i++) {
        n_lines += text[i] == '\n';
        SL_FAIL_IF(text[i] == '\0', err, SL_ERR_INVALID, "line %zu: a zero byte", n_lines);
    }
    char *copy = malloc(n_bytes + 1);
    struct sl_api_key *list = calloc(n_lines, sizeof *list);
    enum sl_status status = copy && list ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %zu keys", n_lines);
    if (status == SL_OK) {
        memcpy(copy, text, n_bytes);
        copy[n_bytes] = '\0';
        status = parse_lines(copy, list, n_out, err);
    }
    free(copy);
    SL_TRY_OR(status, free(list));
    *list_out = list;
    return SL_OK;
}

// ---- the file -------------------------------------------------------------------------------------------------------

// Returns true if a text is the beginning of the one before and ends within a line of it, as a full disk or a crash leaves it.
// A text that lacks only whole lines at the end is not truncated, with or without a final newline.
static bool is_truncated(const struct sl_api_keys *keys, const char *text, size_t n_bytes) {
    return n_bytes < keys->n_bytes && memcmp(text, keys->text, n_bytes) == 0 &&
           (n_bytes == 0 || (text[n_bytes - 1] != '\n' && keys->text[n_bytes] != '\n'));
}

static enum sl_status load(struct sl_api_keys *keys, struct sl_error *err) {
    struct stat about;
    char *text = NULL;
    struct sl_api_key *list = NULL;
    size_t n = 0, n_bytes = 0;
    enum sl_status status = sl_changing_file_read(&keys->file, &text, &n_bytes, &about, err);
    SL_THEN_FAIL_IF(status, is_truncated(keys, text, n_bytes), err, SL_ERR_INVALID,
                    "is cut off after %zu bytes (to remove all keys, leave a comment)", n_bytes);
    SL_THEN(status, sl_api_keys_parse(text, n_bytes, &list, &n, err));
    if (status != SL_OK) {
        free(text);
    } else {
        free(keys->text);
        keys->text = text;
        keys->n_bytes = n_bytes;
        free(keys->list);
        keys->list = list;
        keys->n = n;
        sl_changing_file_accept(&keys->file, &about);
    }
    return status;
}

// Call under the mutex.
static void look_again(struct sl_api_keys *keys) {
    struct sl_error err;
    if (!sl_changing_file_is_due(&keys->file)) {
        return;
    }
    if (load(keys, &err) == SL_OK) {
        sl_log_info("trust", "%s: %zu keys", keys->path, keys->n);
    } else if (sl_changing_file_fail(&keys->file)) {
        sl_log_error("trust", "%s: %s: the %zu keys of before are kept", keys->path, err.text, keys->n);
    }
}

enum sl_status sl_api_keys_open(const char *path, struct sl_api_keys **keys_out, struct sl_error *err) {
    struct sl_api_keys *keys = calloc(1, sizeof *keys);
    SL_FAIL_OR(!keys || !(keys->path = strdup(path)), free(keys), err, SL_ERR_EXHAUSTED, "no memory for keys");
    pthread_mutex_init(&keys->mutex, NULL);
    keys->file = (struct sl_changing_file){.path = keys->path, .max_bytes = MAX_FILE_BYTES, .is_ours_alone = true};
    enum sl_status status = load(keys, err);
    if (status != SL_OK) {
        sl_error_prefix(err, path);
        sl_api_keys_close(&keys);
        return status;
    }
    *keys_out = keys;
    return SL_OK;
}

void sl_api_keys_close(struct sl_api_keys **keys_ptr) {
    SL_TAKE_OR_RETURN(keys, keys_ptr);
    pthread_mutex_destroy(&keys->mutex);
    free(keys->list);
    free(keys->text);
    free(keys->path);
    free(keys);
}

// Call under the mutex. NULL: no line has this hash.
static const struct sl_api_key *find(struct sl_api_keys *keys, const uint8_t hash[32]) {
    for (size_t i = 0; i < keys->n; i++) {
        if (memcmp(keys->list[i].hash, hash, 32) == 0) {
            return &keys->list[i];
        }
    }
    return NULL;
}

enum sl_status sl_api_keys_of_tenant(struct sl_api_keys *keys, const char *tenant, struct sl_api_key *key_out) {
    struct sl_api_key key = sl_api_key_anybody;
    uint8_t hash[32], hash_of_all[32];
    if (!make_tenant_hash(tenant, hash) || !make_tenant_hash("*", hash_of_all)) {
        return SL_ERR_INTERNAL;
    }
    if (keys) {
        SL_LOCKED(&keys->mutex);
        look_again(keys);
        const struct sl_api_key *line = find(keys, hash);
        line = line ? line : find(keys, hash_of_all);
        key = line ? *line : key;
    }
    memcpy(key.hash, hash, sizeof key.hash);
    snprintf(key.tenant, sizeof key.tenant, "%s", tenant);
    *key_out = key;
    return SL_OK;
}

enum sl_status sl_api_keys_find(struct sl_api_keys *keys, const char *presented, struct sl_api_key *key_out) {
    uint8_t hash[32];
    if (sl_sha256(presented, strlen(presented), hash, NULL) != SL_OK) {
        return SL_ERR_DENIED;
    }
    SL_LOCKED(&keys->mutex);
    look_again(keys);
    const struct sl_api_key *key = find(keys, hash);
    if (key) {
        *key_out = *key;
    }
    return key ? SL_OK : SL_ERR_DENIED;
}
