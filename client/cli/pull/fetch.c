// SPDX-License-Identifier: Apache-2.0
#include "client/cli/pull/fetch.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/cli/pull/disk.h"

enum { MAX_PAGE_BYTES = 32 << 20, CONNECT_S = 15, SILENT_S = 30, REST_MS = 1000, MAX_ATTEMPTS = 8 };

enum sl_status sl_fetch_init(struct sl_error *err) {
    return curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? SL_OK
                                                             : sl_fail(err, SL_ERR_INTERNAL, "libcurl does not start");
}

void sl_fetch_cleanup(void) {
    curl_global_cleanup();
}

static CURL *prepare(const struct sl_index *index, const char *url, char *words) {
    CURL *curl = curl_easy_init();
    if (!curl) {
        return NULL;
    }
    bool ok = curl_easy_setopt(curl, CURLOPT_URL, url) == CURLE_OK &&
              curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
              curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https") == CURLE_OK &&
              (!index->cert[0] || curl_easy_setopt(curl, CURLOPT_CAINFO, index->cert) == CURLE_OK);
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1); // rpc_headers.c takes HTTP/2 for gRPC
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)SILENT_S);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, words);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "sluice");
    words[0] = '\0';
    if (!ok) {
        curl_easy_cleanup(curl);
        return NULL;
    }
    return curl;
}

// Maps the end of an attempt, a libcurl code or an unexpected HTTP status, to a status.
static enum sl_status judge(CURL *curl, CURLcode code, const char *url, const char *words, struct sl_error *err) {
    char shown[200];
    long http = 0;
    sl_url_show(url, shown, sizeof shown);
    SL_FAIL_IF(code != CURLE_OK, err, SL_ERR_PEER_LOST, "%s: %s", shown, words[0] ? words : curl_easy_strerror(code));
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &http);
    SL_FAIL_IF(http == 404 || http == 410, err, SL_ERR_NOT_FOUND, "%s: not there (HTTP %ld)", shown, http);
    SL_FAIL_IF(http == 401 || http == 403, err, SL_ERR_DENIED, "%s: not allowed (HTTP %ld)", shown, http);
    return http == 200 || http == 206 ? SL_OK : sl_fail(err, SL_ERR_PEER_LOST, "%s: HTTP %ld", shown, http);
}

// Runs a transfer. take: gets the bytes; look: is called at least once a second. Both get arg.
static CURLcode perform(CURL *curl, curl_write_callback take, curl_xferinfo_callback look, void *arg) {
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, arg);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, look);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, arg);
    return curl_easy_perform(curl);
}

struct reading {
    struct sl_page page;
    bool (*stopped)(void *arg);
    void *arg;
    bool ended;
};

static int look_for_end(void *arg, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now) {
    struct reading *reading = arg;
    (void)total, (void)now, (void)up_total, (void)up_now;
    reading->ended = reading->stopped && reading->stopped(reading->arg);
    return reading->ended;
}

static size_t take_page(char *data, size_t size, size_t n, void *arg) {
    struct sl_page *page = &((struct reading *)arg)->page;
    size_t bytes = size * n;
    char *grown = page->bytes + bytes <= MAX_PAGE_BYTES ? realloc(page->text, page->bytes + bytes + 1) : NULL;
    if (!grown) {
        return 0; // 0 ends the transfer
    }
    page->text = grown;
    memcpy(page->text + page->bytes, data, bytes);
    page->bytes += bytes;
    page->text[page->bytes] = '\0';
    return bytes;
}

enum sl_status sl_fetch_page(const struct sl_index *index, const char *url, bool (*stopped)(void *arg), void *arg,
                             struct sl_page *page_out, struct sl_error *err) {
    struct reading reading = {.stopped = stopped, .arg = arg};
    char words[CURL_ERROR_SIZE];
    CURL *curl = prepare(index, url, words);
    struct curl_slist *headers = curl_slist_append(
        NULL,
        "Accept: application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1");
    if (!curl || !headers) {
        curl_easy_cleanup(curl);
        curl_slist_free_all(headers);
        return sl_fail(err, SL_ERR_EXHAUSTED, "libcurl: out of memory, or without HTTP");
    }
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_ACCEPT_ENCODING, "");
    CURLcode code = perform(curl, take_page, look_for_end, &reading);
    enum sl_status status =
        reading.ended ? sl_fail(err, SL_ERR_CANCELLED, "stopped by a signal")
        : code == CURLE_WRITE_ERROR
            ? sl_fail(err, SL_ERR_PEER_CORRUPT, "the page is larger than %d MiB", MAX_PAGE_BYTES >> 20)
            : judge(curl, code, url, words, err);
    const char *type = NULL, *effective = NULL;
    SL_THEN_FAIL_IF(status,
                    curl_easy_getinfo(curl, CURLINFO_EFFECTIVE_URL, &effective) != CURLE_OK || !reading.page.text ||
                        strlen(effective) >= sizeof reading.page.url,
                    err, SL_ERR_PEER_CORRUPT, "the page is empty");
    if (status == SL_OK) {
        curl_easy_getinfo(curl, CURLINFO_CONTENT_TYPE, &type);
        reading.page.is_json = type && strstr(type, "json");
        strcpy(reading.page.url, effective);
        *page_out = reading.page;
    } else {
        free(reading.page.text);
    }
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
    return status;
}

void sl_page_cleanup(struct sl_page *page) {
    free(page->text);
    *page = (struct sl_page){0};
}

struct attempt {
    struct sl_download *download;
    CURL *curl;
    int fd;
    int64_t from_bytes; // start of the requested range
    bool began, stopped, too_long;
    enum sl_status write_status;
    struct sl_error *err; // of writing
};

static size_t take_part(char *data, size_t size, size_t n, void *arg) {
    struct attempt *attempt = arg;
    if (!attempt->began) {
        long http = 0;
        curl_easy_getinfo(attempt->curl, CURLINFO_RESPONSE_CODE, &http);
        if (http != 200 && http != 206) {
            return size * n; // discard the body of an error
        }
        if (http == 200 && attempt->from_bytes > 0) { // the server sends the file from its beginning
            if (ftruncate(attempt->fd, 0) != 0 || lseek(attempt->fd, 0, SEEK_SET) != 0) {
                attempt->write_status = sl_fail(attempt->err, SL_ERR_IO, "cannot be written: %s", strerror(errno));
                return 0;
            }
            attempt->from_bytes = attempt->download->done_bytes = attempt->download->began_bytes = 0;
        }
        attempt->began = true;
    }
    if ((int64_t)(size * n) > attempt->download->max_bytes - attempt->download->done_bytes) {
        attempt->too_long = true;
        return 0;
    }
    attempt->write_status = sl_disk_write(attempt->fd, data, size * n, attempt->err);
    if (attempt->write_status != SL_OK) {
        return 0;
    }
    attempt->download->done_bytes += (int64_t)(size * n);
    return size * n;
}

static int look(void *arg, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now) {
    struct attempt *attempt = arg;
    struct sl_download *download = attempt->download;
    (void)now, (void)up_total, (void)up_now;
    attempt->stopped = download->stopped && download->stopped(download->arg);
    if (download->progress && attempt->began) {
        download->progress(download->arg, download->done_bytes, total > 0 ? attempt->from_bytes + total : 0);
    }
    return attempt->stopped;
}

static enum sl_status fetch_once(const struct sl_index *index, struct sl_download *download, int fd,
                                 struct sl_error *err) {
    char words[CURL_ERROR_SIZE], range[32];
    struct attempt attempt = {.download = download, .fd = fd, .from_bytes = download->done_bytes, .err = err};
    CURL *curl = attempt.curl = prepare(index, download->url, words);
    SL_FAIL_IF(!curl, err, SL_ERR_EXHAUSTED, "libcurl: out of memory, or without HTTP");
    // An explicit range: with libcurl's own resuming, it would refuse a reply with the whole file
    if (attempt.from_bytes > 0) {
        snprintf(range, sizeof range, "%lld-", (long long)attempt.from_bytes);
        curl_easy_setopt(curl, CURLOPT_RANGE, range);
    }
    CURLcode code = perform(curl, take_part, look, &attempt);
    long http = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &http);
    enum sl_status status;
    if (attempt.write_status != SL_OK) {
        status = attempt.write_status;
        sl_error_prefix(err, "the download");
    } else if (attempt.too_long) {
        download->done_bytes = download->began_bytes = 0;
        status = ftruncate(fd, 0) == 0
                     ? sl_fail(err, SL_ERR_PEER_CORRUPT,
                               "the server sends more than the file's %lld bytes: the download is discarded",
                               (long long)download->max_bytes)
                     : sl_fail(err, SL_ERR_IO, "the download cannot be discarded: %s", strerror(errno));
    } else if (attempt.stopped) {
        status = sl_fail(err, SL_ERR_CANCELLED, "stopped by a signal");
    } else if (http == 416) {
        // The range starts after the end of the server's file: ours is complete, or another file. The digest tells.
        status = SL_OK;
    } else {
        status = judge(curl, code, download->url, words, err);
    }
    curl_easy_cleanup(curl);
    return status;
}

enum sl_status sl_fetch_file(const struct sl_index *index, struct sl_download *download, int fd, struct sl_error *err) {
    off_t there = lseek(fd, 0, SEEK_END);
    SL_FAIL_IF(there < 0, err, SL_ERR_IO, "the earlier part of the download cannot be read: %s", strerror(errno));
    download->began_bytes = download->done_bytes = there;
    for (int i = 0;; i++) {
        int64_t before = download->done_bytes;
        enum sl_status status = fetch_once(index, download, fd, err);
        bool brought = download->done_bytes > before;
        if (status != SL_ERR_PEER_LOST || !brought || i + 1 == MAX_ATTEMPTS) {
            return status;
        }
        sl_sleep_ms(REST_MS);
    }
}

enum sl_status sl_url_resolve(const char *page_url, const char *relative, char url_out[SL_URL_BYTES],
                              struct sl_error *err) {
    CURLU *url = curl_url();
    char *text = NULL;
    bool ok = url && curl_url_set(url, CURLUPART_URL, page_url, 0) == CURLUE_OK &&
              curl_url_set(url, CURLUPART_URL, relative, 0) == CURLUE_OK &&
              curl_url_get(url, CURLUPART_URL, &text, 0) == CURLUE_OK && strlen(text) < SL_URL_BYTES;
    if (ok) {
        strcpy(url_out, text);
    }
    curl_free(text);
    curl_url_cleanup(url);
    if (!ok) {
        char shown[100];
        sl_url_show(relative, shown, sizeof shown);
        return sl_fail(err, SL_ERR_INVALID, "the file's address is not a URL: %s", shown);
    }
    return SL_OK;
}
