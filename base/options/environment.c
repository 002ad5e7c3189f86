// SPDX-License-Identifier: Apache-2.0
#include "base/options/environment.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

extern char **environ;

// Options that every command of the tool reads from the environment, if the command has them. docs/OPERATIONS.md lists
// them.
static const char *const of_tool[] = {"config",      "coordinator", "device",  "log",     "model",  "tls-ca",
                                      "tls-revoked", "tls-cert",    "tls-key", "timeout", "weights"};

// clang-format off
// To add an option to a server: add its name here too (tests/unit/sluice/test_traps.py compares).
static const char *const of_servers[] = {
    "admin-listen", "advertise", "aggregated", "allowed-hosts", "allowed-origins", "arena", "body-memory", "body-timeout", "check", "checkpoint-after", "checkpoint-share", "coordinator", "deadline", "device",
    "disk", "disk-bytes", "document-bytes", "etcd", "etcd-ca", "etcd-cert", "etcd-key", "etcd-prefix", "evict", "fabric-listen", "first-timeout",
    "generation-config", "gpudirect", "grace", "heartbeat", "https-cert", "https-key", "huge-pages", "idle-timeout", "inject", "insecure",
    "job-retention", "jwt-audience", "jwt-issuer", "jwt-keys", "jwt-tenant", "keep", "kept-bytes", "kept-jobs",
    "keys", "lease", "listen", "lock", "log", "log-format", "max-body", "max-chunk", "max-connections", "max-documents", "max-jobs",
    "max-prompt", "max-requests", "max-scan-load", "max-watchers", "metrics-alias", "model", "model-name", "name",
    "otlp", "otlp-share", "parts-timeout", "pin", "ping", "prefill-timeout", "prefixes", "private-weights", "queue", "ranks", "reader-timeout", "rebalance", "recipe", "report-loading",
    "request-memory", "retries", "retrieve-deadline", "retrieve-lost", "routing", "salt-file", "scan-threads", "staging",
    "stall-after", "state", "state-bytes", "tenant-share", "tenants", "threads", "tier", "tls-ca", "tls-cert",
    "tls-key", "tls-revoked", "tls-unstated-roles", "transport", "ttl", "weights", "worker-wait",
};

// To add an option to a command that no server has: add its name here too (the same test).
static const char *const of_commands[] = {
    "all", "as-is", "autoscale", "available", "axes", "batch", "batches", "both", "breakdown", "budget", "burstiness", "call",
    "catalog", "cell", "certificates", "chat", "checkpoint", "chunk", "clean", "clients",
    "clip", "compute", "contexts", "continuation", "coordinator-state", "coordinators", "copy", "costs", "count",
    "data", "decode", "decode-arena", "detach", "direct", "doc", "dtype", "entries", "estimate-errors", "every",
    "ffn", "for", "forever", "format", "frequency-penalty", "from", "geometry", "grammar",
    "head-dim", "heads", "hidden", "hidden-size", "host", "html", "http-port", "ignore-eos", "in-slo", "index-url",
    "input", "interval", "jobs", "json", "jsonl", "keep-going", "keep-models", "kv-heads", "kvstore",
    "label", "largest", "latency", "layers", "limit", "link", "local", "logits", "lookup", "lr",
    "machine", "max-new-tokens", "max-tokens", "memory", "min-p", "models", "most", "no-gateway", "no-history",
    "no-reuse", "no-text", "once", "only", "out", "out-only", "output", "paced", "pem", "per-second", "png", "port", "prefill",
    "prefill-arena", "prefill-jobs", "prefill-ms", "presence-penalty", "prompt", "prompt-file", "prompts",
    "question", "quick", "quiet", "rate", "raw", "ready-timeout", "recommended", "repetition-penalty", "replicas",
    "requests", "retaining-heads", "rows", "runs", "save-capsule", "save-every", "scale-rate", "seconds",
    "seed", "ship-at-most", "size", "slo", "slots", "smooth", "start", "state-file", "steps", "stop",
    "store-arena", "store-bytes", "system", "task", "temperature", "tenant-count", "text", "tflops",
    "threshold", "time-limit", "timeout", "tls", "token-ms", "token-us", "tokens", "top-k", "top-p",
    "trace", "undo", "verbose", "vocab", "wait", "warm-up", "workers", "workers-log", "write",
};

// To add a command or a program: add its name here too (the same test).
static const char *const programs[] = {
    "sluice-coordinator", "sluice-prefill", "sluice-decode", "sluice-kvstore", "sluice-gateway", "sluice chat", "sluice run",
    "sluice doc add", "sluice doc ls", "sluice doc show", "sluice doc ask", "sluice doc keep", "sluice doc export",
    "sluice doc import", "sluice doc rm",
    "sluice up", "sluice status", "sluice down", "sluice pull", "sluice models", "sluice submit", "sluice watch",
    "sluice cancel", "sluice jobs", "sluice compare", "sluice top", "sluice workers", "sluice drain", "sluice plan", "sluice simulate",
    "sluice bench engine", "sluice bench calibrate", "sluice bench cells", "sluice bench kernels", "sluice bench tiers",
    "sluice bench ships", "sluice bench decode",
    "sluice bench memory", "sluice bench evict", "sluice bench store", "sluice bench jobs", "sluice bench waiting", "sluice eval fidelity",
    "sluice eval perplexity", "sluice eval weights", "sluice inspect", "sluice profile", "sluice recipes",
    "sluice train-heads", "sluice doctor",
};
// clang-format on

// Variables that are not options: those of our tests and builds, of deploy/compose, of the plugin, and SLUICE_TIER,
// which only servers read.
static const char *const of_others[] = {"bin",           "faults", "bend",         "freeze-lib",    "fuzz",
                                        "aiperf",        "asan",   "tsan",         "image",         "models",
                                        "worker-memory", "cuda",   "test-verbose", "test-slowness", "gemm"};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static bool has(const char *const *names, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_tool(const char *program) {
    return strncmp(program, "sluice ", 7) == 0;
}

bool sl_environment_takes(const char *program, const char *option) {
    return !is_tool(program) || has(of_tool, COUNT(of_tool), option);
}

static bool is_known(const char *option) {
    return has(of_servers, COUNT(of_servers), option) || has(of_tool, COUNT(of_tool), option);
}

bool sl_known_option(const char *name) {
    return is_known(name) || has(of_commands, COUNT(of_commands), name);
}

bool sl_known_program(const char *name, struct sl_similar *similar) {
    for (size_t i = 0; i < COUNT(programs); i++) {
        sl_similar_offer(similar, programs[i]);
    }
    return has(programs, COUNT(programs), name);
}

void sl_environment_name(const char *option, char *name, size_t name_bytes) {
    snprintf(name, name_bytes, "SLUICE_%s", option);
    for (char *c = name; *c; c++) {
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    }
}

// Turns SLUICE_MAX_BATCH=... into "max-batch"; false: the variable is not one of Sluice.
static bool option_name(const char *variable, char *name, size_t name_bytes) {
    size_t n = strcspn(variable, "=");
    if (strncmp(variable, "SLUICE_", 7) != 0 || n - 7 >= name_bytes || variable[n] == '\0' || variable[n + 1] == '\0') {
        return false;
    }
    for (size_t i = 7; i < n; i++) {
        name[i - 7] = variable[i] == '_' ? '-' : (char)tolower((unsigned char)variable[i]);
    }
    name[n - 7] = '\0';
    return true;
}

void sl_environment_check(void (*warn_fn)(const char *program, const char *text), const char *program) {
    for (char **variable = environ; *variable; variable++) {
        char name[64], text[256], meant[80] = "";
        if (!option_name(*variable, name, sizeof name) || is_known(name) || has(of_others, COUNT(of_others), name) ||
            strncmp(name, "emulated-", 9) == 0) {
            continue;
        }
        struct sl_similar similar = {.word = name};
        for (size_t i = 0; i < COUNT(of_tool); i++) {
            sl_similar_offer(&similar, of_tool[i]);
        }
        for (size_t i = 0; i < COUNT(of_servers) && !is_tool(program); i++) {
            sl_similar_offer(&similar, of_servers[i]);
        }
        if (similar.name) {
            sl_environment_name(similar.name, meant, sizeof meant);
        }
        snprintf(text, sizeof text, "%.*s in the environment is not a variable of Sluice's, and ignored%s%s%s",
                 (int)strcspn(*variable, "="), *variable, similar.name ? ": is " : "", meant,
                 similar.name ? " meant?" : "");
        warn_fn(program, text);
    }
}
