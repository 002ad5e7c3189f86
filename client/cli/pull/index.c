// SPDX-License-Identifier: Apache-2.0
// Purpose: chooses the package index; see index.h. index_page.c reads its pages.
#include "client/cli/pull/index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC_INDEX "https://pypi.org/simple"

static char *trimmed(char *text) {
    text += strspn(text, " \t\r\n");
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\r\n", text[n - 1])) {
        text[--n] = '\0';
    }
    return text;
}

static bool keep(const char *text, char *buf, size_t buf_bytes) {
    return (size_t)snprintf(buf, buf_bytes, "%s", text) < buf_bytes;
}

// Reads [global] and [download] of a pip.conf; missing settings change nothing. False: a value is too long.
static bool read_settings(const char *path, struct sl_index *index) {
    FILE *file = fopen(path, "re");
    if (!file) {
        return true; // most of these files do not exist
    }
    char *line = NULL;
    size_t allocated = 0;
    bool ours = false, fits = true;
    while (fits && getline(&line, &allocated, file) > 0) {
        char *text = trimmed(line), *value = text + strcspn(text, "=:");
        if (text[0] == '[') {
            ours = strcmp(text, "[global]") == 0 || strcmp(text, "[download]") == 0;
        } else if (ours && *value && text[0] != '#' && text[0] != ';') {
            *value++ = '\0';
            const char *key = trimmed(text);
            if (strcmp(key, "index-url") == 0 || strcmp(key, "index_url") == 0) {
                fits = keep(trimmed(value), index->url, sizeof index->url);
            } else if (strcmp(key, "cert") == 0) {
                fits = keep(trimmed(value), index->cert, sizeof index->cert);
            }
        }
    }
    free(line);
    fclose(file);
    return fits;
}

static bool read_all_settings(struct sl_index *index) {
    const char *given = getenv("PIP_CONFIG_FILE"), *home = getenv("HOME"), *config = getenv("XDG_CONFIG_HOME"),
               *virtual_env = getenv("VIRTUAL_ENV");
    char user[4][PATH_MAX] = {"/etc/pip.conf"};
    if (given && strcmp(given, "/dev/null") == 0) { // pip reads no file in this case
        return true;
    }
    if (home && home[0]) {
        snprintf(user[1], sizeof user[1], "%s/.pip/pip.conf", home);
        snprintf(user[2], sizeof user[2], "%s/.config/pip/pip.conf", home);
    }
    if (config && config[0]) {
        snprintf(user[2], sizeof user[2], "%s/pip/pip.conf", config);
    }
    if (virtual_env && virtual_env[0]) {
        snprintf(user[3], sizeof user[3], "%s/pip.conf", virtual_env);
    }
    bool fits = true;
    for (int i = 0; i < 4 && fits; i++) {
        fits = user[i][0] == '\0' || read_settings(user[i], index);
    }
    return fits && (!given || read_settings(given, index));
}

void sl_url_show(const char *url, char *buf, size_t buf_bytes) {
    const char *scheme_end = strstr(url, "://"), *host = scheme_end ? scheme_end + 3 : url;
    size_t n = strcspn(host, "/?#");
    const char *at = memrchr(host, '@', n);
    if (strchr(host + n, '@') && memchr(host, ':', n)) {
        snprintf(buf, buf_bytes, "%.*s...", (int)(host - url), url);
        return;
    }
    const char *shown = at ? at + 1 : host;
    snprintf(buf, buf_bytes, "%.*s%.*s", (int)(host - url), url, (int)strcspn(shown, "?#"), shown);
}

enum sl_status sl_index_choose(const char *given, struct sl_index *index_out, struct sl_error *err) {
    struct sl_index index = {.url = PUBLIC_INDEX};
    const char *system_cert = getenv("SSL_CERT_FILE"), *url = getenv("PIP_INDEX_URL"), *cert = getenv("PIP_CERT");
    bool fits = keep(system_cert ? system_cert : "", index.cert, sizeof index.cert) && read_all_settings(&index) &&
                (!url || !url[0] || keep(url, index.url, sizeof index.url)) &&
                (!cert || !cert[0] || keep(cert, index.cert, sizeof index.cert)) &&
                (!given[0] || keep(given, index.url, sizeof index.url));
    SL_FAIL_IF(!fits, err, SL_ERR_INVALID, "the package index's address, or the path of its certificates, is too long");
    if (strncmp(index.url, "http://", 7) != 0 && strncmp(index.url, "https://", 8) != 0) {
        char shown[100];
        sl_url_show(index.url, shown, sizeof shown);
        return sl_fail(err, SL_ERR_INVALID, "the package index's address begins with neither http:// nor https://: %s",
                       shown);
    }
    for (size_t n = strlen(index.url); n > 0 && index.url[n - 1] == '/'; n--) {
        index.url[n - 1] = '\0';
    }
    *index_out = index;
    return SL_OK;
}
