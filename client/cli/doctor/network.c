// SPDX-License-Identifier: Apache-2.0
// Purpose: see checks.h: ports, clocks, peers and certificates.
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timex.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/close.h"
#include "client/cli/doctor/checks.h"
#include "net/rpc/rpc.h"
#include "net/trust/validity.h"

enum { MAX_SKEW_MS = 2000, DAY_S = 86400, SOON_DAYS = 14, PROBE_MS = 1000 };

// ---- ports ----------------------------------------------------------------------------------------------------------

// Returns 0 if a server could listen there, else errno.
static int try_to_listen(const char *host, int64_t port) {
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    snprintf(service, sizeof service, "%lld", (long long)port);
    if (getaddrinfo(host, service, &hints, &list) != 0) {
        return EADDRNOTAVAIL;
    }
    const int fd = socket(list->ai_family, list->ai_socktype | SOCK_CLOEXEC, list->ai_protocol), on = 1;
    int why = fd < 0 ? errno : 0;
    if (why == 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); // as servers do: an ended connection does not matter
        why = bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, 1) != 0 ? errno : 0;
        close(fd);
    }
    freeaddrinfo(list);
    return why;
}

void sl_doctor_port(struct sl_findings *findings, const char *host, int64_t port, const char *option) {
    if (port == 0) {
        return;
    }
    const int why = try_to_listen(host, port);
    if (why == 0) {
        sl_findings_add(findings, "port", SL_HEALTH_OK, "%s:%lld is free: `sluice up` can listen there", host,
                        (long long)port);
        return;
    }
    sl_findings_add(findings, "port", SL_HEALTH_FAILED, "%s:%lld: %s: `sluice up` cannot listen there", host,
                    (long long)port, strerror(why));
    if (why == EADDRNOTAVAIL) {
        sl_findings_remedy(findings, "--host an address of this machine");
    } else {
        sl_findings_remedy(findings, "%s another port; `sluice status` lists the clusters of this machine", option);
    }
}

// ---- clocks ---------------------------------------------------------------------------------------------------------

void sl_doctor_clock(struct sl_findings *findings) {
    struct timex timex = {0};
    const int state = adjtimex(&timex);
    if (state >= 0 && state != TIME_ERROR && !(timex.status & STA_UNSYNC)) {
        sl_findings_add(findings, "clock", SL_HEALTH_OK,
                        "synchronized: certificates begin and end, and traces of machines line up");
        return;
    }
    sl_findings_add(
        findings, "clock", SL_HEALTH_WARNING,
        "not synchronized by NTP, as far as the kernel knows: certificates and web tokens are judged by it");
    sl_findings_remedy(findings, "chronyd, or systemd-timesyncd");
}

static void compare_clocks(struct sl_findings *findings, const char *address, const Sluice__V1__ModelReply *reply,
                           int64_t asked_ms) {
    const int64_t answered_ms = sl_wall_ms();
    sl_findings_add(findings, "coordinator", reply->ready || reply->standby ? SL_HEALTH_OK : SL_HEALTH_WARNING,
                    "%s answers: model %s%s", address, reply->name,
                    reply->ready     ? ""
                    : reply->standby ? ", standby"
                                     : ", and no prefill or no decode worker takes jobs");
    if (reply->time_ms == 0) { // an older version does not report it
        return;
    }
    // It read its clock between our two readings.
    const int64_t early = asked_ms - reply->time_ms, late = reply->time_ms - answered_ms;
    const int64_t skew = early > 0 ? early : late > 0 ? late : 0;
    sl_findings_add(findings, "clock skew", skew > MAX_SKEW_MS ? SL_HEALTH_WARNING : SL_HEALTH_OK,
                    "%" PRId64 " ms against the coordinator: times of jobs and documents are the coordinator's", skew);
    sl_findings_remedy(findings, "synchronize both machines with NTP");
}

void sl_doctor_coordinator(struct sl_findings *findings, const struct sl_tool_config *tool) {
    struct sl_client *client;
    struct sl_error err;
    if (!sl_tool_reachable(tool->coordinator, PROBE_MS)) {
        sl_findings_add(findings, "coordinator", SL_HEALTH_OK, "none listens at %s: commands need a cluster there",
                        tool->coordinator);
        return;
    }
    Sluice__V1__ModelReply *reply = NULL;
    sl_rpc_init();
    enum sl_status status = sl_client_connect(tool->coordinator, &tool->tls, &client, &err);
    const int64_t asked_ms = sl_wall_ms();
    if (status == SL_OK) {
        status = sl_client_model(client, sl_deadline_in_ms(tool->timeout_ms), &reply, &err);
        sl_client_close(&client);
    }
    if (status == SL_OK) {
        compare_clocks(findings, tool->coordinator, reply, asked_ms);
        sluice__v1__model_reply__free_unpacked(reply, NULL);
    } else {
        sl_findings_add(findings, "coordinator", SL_HEALTH_FAILED, "%s: %.250s", tool->coordinator, err.text);
        sl_findings_remedy(findings, "--coordinator HOST:PORT, and --tls-ca, --tls-cert, --tls-key with certificates");
    }
    sl_rpc_shutdown();
}

void sl_doctor_etcd(struct sl_findings *findings, const char *servers) {
    // Servers are URLs or HOST:PORT, as sluice-coordinator --etcd takes them.
    char list[512];
    snprintf(list, sizeof list, "%s", servers);
    for (char *next = list, *server; (server = strsep(&next, ",")) != NULL;) {
        char *host = strstr(server, "://");
        host = host ? host + 3 : server;
        host[strcspn(host, "/")] = '\0';
        const bool answers = sl_tool_reachable(host, PROBE_MS);
        sl_findings_add(findings, "etcd", answers ? SL_HEALTH_OK : SL_HEALTH_FAILED,
                        "%s %s: coordinators elect their leader there", host,
                        answers ? "takes connections" : "takes no connection");
        sl_findings_remedy(findings, "start etcd, or correct --etcd; without it no coordinator leads");
    }
}

// ---- certificates -----------------------------------------------------------------------------------------------------

static void check_certificate(struct sl_findings *findings, const char *path) {
    struct sl_error err;
    int64_t end_s = 0;
    const enum sl_status status = sl_certificate_file_end(path, &end_s, &err);
    if (status == SL_ERR_NOT_FOUND) {
        return; // a key, or a list of revoked certificates
    }
    if (status != SL_OK) {
        sl_findings_add(findings, "certificate", SL_HEALTH_FAILED, "%.300s", err.text);
        return;
    }
    const int64_t left_s = end_s - sl_wall_ms() / 1000;
    const enum sl_health health = left_s <= 0                           ? SL_HEALTH_FAILED
                                  : left_s < (int64_t)SOON_DAYS * DAY_S ? SL_HEALTH_WARNING
                                                                        : SL_HEALTH_OK;
    sl_findings_add(findings, "certificate", health, "%.200s %s %" PRId64 " days%s", path,
                    left_s <= 0 ? "ended" : "ends in", (left_s <= 0 ? -left_s : left_s) / DAY_S,
                    left_s <= 0 ? " ago: peers refuse it" : ": after that peers refuse new connections");
    sl_findings_remedy(findings, "issue a new one; processes read changed files by themselves (docs/SECURITY.md)");
}

static bool is_certificate_name(const char *name) {
    const char *end = strrchr(name, '.');
    return end && (strcmp(end, ".pem") == 0 || strcmp(end, ".crt") == 0);
}

void sl_doctor_certificates(struct sl_findings *findings, const char *path) {
    struct stat st;
    const size_t n_before = findings->n;
    if (stat(path, &st) != 0) {
        sl_findings_add(findings, "certificate", SL_HEALTH_FAILED, "%.300s: %s", path, strerror(errno));
        return;
    }
    DIR *dir = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    if (!dir) {
        check_certificate(findings, path);
    }
    for (const struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        char file[PATH_MAX + 256];
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (is_certificate_name(entry->d_name)) {
            check_certificate(findings, file);
        }
    }
    sl_close_folder(dir);
    if (findings->n == n_before) {
        sl_findings_add(findings, "certificate", SL_HEALTH_FAILED, "%.300s has no certificate", path);
        sl_findings_remedy(findings, "--pem a PEM file, or a folder of files *.pem or *.crt");
    }
}
