// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: finds a file on a project's page of a package index; see index.h.
 * Design: in HTML only links are read: every <a ... href="URL#sha256=HEX" ...>, whose file is the last part of the
 *         URL's path.
 */
#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/pull/index.h"

// Copies 64 hexadecimal digits in lower case; otherwise writes "".
static void take_digest(const char *hex, size_t n, char sha256_out[SL_SHA256_HEX_BYTES]) {
    sha256_out[0] = '\0';
    if (n != SL_SHA256_HEX_BYTES - 1) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (!isxdigit((unsigned char)hex[i])) {
            sha256_out[0] = '\0';
            return;
        }
        sha256_out[i] = (char)tolower((unsigned char)hex[i]);
    }
    sha256_out[n] = '\0';
}

static enum sl_status find_in_json(const char *page, size_t page_bytes, const char *filename,
                                   struct sl_index_file *file, struct sl_error *err) {
    json_error_t why;
    json_t *root = json_loadb(page, page_bytes, 0, &why);
    const json_t *files = json_object_get(root, "files"), *entry;
    enum sl_status status = SL_ERR_NOT_FOUND;
    size_t i;
    if (!json_is_array(files)) {
        status = sl_fail(err, SL_ERR_INVALID, "it has no list of files%s%s", root ? "" : ": ", root ? "" : why.text);
    }
    json_array_foreach(files, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "filename"));
        const char *url = json_string_value(json_object_get(entry, "url"));
        if (status == SL_ERR_NOT_FOUND && name && url && strcmp(name, filename) == 0 && strlen(url) < SL_URL_BYTES) {
            const json_t *digest = json_object_get(json_object_get(entry, "hashes"), "sha256");
            take_digest(json_is_string(digest) ? json_string_value(digest) : "", json_string_length(digest),
                        file->sha256);
            strcpy(file->url, url);
            status = SL_OK;
        }
    }
    json_decref(root);
    return status;
}

// Decodes text[0..n): replaces the five entities that a URL may contain in HTML. False: it does not fit.
static bool unescape(const char *text, size_t n, char *buf, size_t buf_bytes) {
    static const struct {
        const char *entity;
        char meant;
    } entities[] = {{"&amp;", '&'}, {"&#38;", '&'}, {"&quot;", '"'}, {"&#39;", '\''}, {"&#x27;", '\''}};
    size_t used = 0;
    for (size_t i = 0; i < n && used + 1 < buf_bytes;) {
        size_t length = 1;
        char c = text[i];
        for (size_t k = 0; k < sizeof entities / sizeof entities[0]; k++) {
            size_t bytes = strlen(entities[k].entity);
            if (n - i >= bytes && strncmp(text + i, entities[k].entity, bytes) == 0) {
                length = bytes;
                c = entities[k].meant;
            }
        }
        i += length;
        buf[used++] = c;
        if (i >= n) {
            buf[used] = '\0';
            return true;
        }
    }
    return false;
}

// Returns the value of href in the attributes between `at` and `end`; NULL: none.
static const char *find_href(const char *at, const char *end, size_t *n_out) {
    while (at < end) {
        while (at < end && (isspace((unsigned char)*at) || *at == '/')) {
            at++;
        }
        const char *name = at;
        while (at < end && *at != '=' && !isspace((unsigned char)*at)) {
            at++;
        }
        bool is_href = at - name == 4 && strncasecmp(name, "href", 4) == 0;
        while (at < end && isspace((unsigned char)*at)) {
            at++;
        }
        if (at >= end || *at != '=') {
            continue;
        }
        at++;
        while (at < end && isspace((unsigned char)*at)) {
            at++;
        }
        char quote = at < end && (*at == '"' || *at == '\'') ? *at++ : '\0';
        const char *value = at;
        while (at < end && (quote ? *at != quote : !isspace((unsigned char)*at))) {
            at++;
        }
        if (is_href) {
            *n_out = (size_t)(at - value);
            return value;
        }
        at += quote && at < end;
    }
    return NULL;
}

// Returns true if a URL's file is this one, and then writes its parts.
static bool take_link(const char *url, const char *filename, struct sl_index_file *file) {
    size_t path = strcspn(url, "?#"), name = path;
    while (name > 0 && url[name - 1] != '/') {
        name--;
    }
    if (strlen(filename) != path - name || strncmp(url + name, filename, path - name) != 0) {
        return false;
    }
    const char *fragment = strchr(url, '#');
    bool told = fragment && strncmp(fragment, "#sha256=", 8) == 0;
    take_digest(told ? fragment + 8 : "", told ? strcspn(fragment + 8, "&") : 0, file->sha256);
    snprintf(file->url, sizeof file->url, "%.*s", (int)strcspn(url, "#"), url);
    return true;
}

static enum sl_status find_in_html(const char *page, size_t page_bytes, const char *filename,
                                   struct sl_index_file *file) {
    const char *end = page + page_bytes, *tag = page;
    while ((tag = memchr(tag, '<', (size_t)(end - tag))) != NULL) {
        const char *close = memchr(tag, '>', (size_t)(end - tag));
        if (!close) {
            break;
        }
        char url[SL_URL_BYTES];
        size_t n;
        bool is_link = close - tag > 2 && tolower((unsigned char)tag[1]) == 'a' && isspace((unsigned char)tag[2]);
        const char *href = is_link ? find_href(tag + 2, close, &n) : NULL;
        if (href && unescape(href, n, url, sizeof url) && take_link(url, filename, file)) {
            return SL_OK;
        }
        tag = close;
    }
    return SL_ERR_NOT_FOUND;
}

enum sl_status sl_index_find(const char *page, size_t page_bytes, bool is_json, const char *filename,
                             struct sl_index_file *file_out, struct sl_error *err) {
    struct sl_index_file file = {0};
    enum sl_status status = is_json ? find_in_json(page, page_bytes, filename, &file, err)
                                    : find_in_html(page, page_bytes, filename, &file);
    if (status == SL_OK) {
        *file_out = file;
    } else if (status == SL_ERR_NOT_FOUND) {
        sl_fail(err, status, "it has no %s", filename);
    }
    return status;
}
