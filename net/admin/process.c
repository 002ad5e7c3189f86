// SPDX-License-Identifier: Apache-2.0
#include "net/admin/process.h"

#include <dirent.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/close.h"
#include "base/log.h"
#include "base/metrics.h"

// Returns when this machine booted, in seconds since 1970; 0: unknown.
static double boot_s(void) {
    double found = 0;
    FILE *file = fopen("/proc/stat", "r");
    if (file) {
        char line[256];
        while (fgets(line, sizeof line, file) && sscanf(line, "btime %lf", &found) != 1) {
        }
        fclose(file);
    }
    return found;
}

// Parses the line of /proc/self/stat: after the name, which may hold any character but ends with the last ')', the
// numbers start with field 3.
static void write_stat(FILE *page) {
    char line[2048];
    FILE *file = fopen("/proc/self/stat", "r");
    const char *found = file ? fgets(line, sizeof line, file) : NULL;
    sl_close_file(file);
    found = found ? strrchr(line, ')') : NULL;
    unsigned long user, kernel, bytes;
    long n_threads, pages;
    unsigned long long started;
    if (!found ||
        sscanf(found + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %ld %*d %llu %lu %ld",
               &user, &kernel, &n_threads, &started, &bytes, &pages) != 6) {
        return;
    }
    double ticks = (double)sysconf(_SC_CLK_TCK), boot = boot_s();
    sl_metrics_write(page, SL_COUNTER, "process_cpu_seconds_total", "Processor time, user and system.",
                     (double)(user + kernel) / ticks);
    sl_metrics_write(page, SL_GAUGE, "process_threads", "Threads.", (double)n_threads);
    sl_metrics_write(page, SL_GAUGE, "process_virtual_memory_bytes", "Virtual memory.", (double)bytes);
    sl_metrics_write(page, SL_GAUGE, "process_resident_memory_bytes", "Resident memory.",
                     (double)pages * (double)sysconf(_SC_PAGESIZE));
    if (boot > 0) {
        sl_metrics_write(page, SL_GAUGE, "process_start_time_seconds",
                         "When the process started, in seconds since 1970.", boot + (double)started / ticks);
    }
}

static void write_files(FILE *page) {
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (folder) {
        while (readdir(folder)) {
            n++;
        }
        closedir(folder);
        sl_metrics_write(page, SL_GAUGE, "process_open_fds", "Open files.", n - 3); // ".", ".." and the folder itself
    }
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        sl_metrics_write(page, SL_GAUGE, "process_max_fds", "Files that may be open.", (double)files.rlim_cur);
    }
}

static void write_log_lines(FILE *page) {
    static const char *const levels[] = {"error", "warn", "info", "debug", "trace"};
    sl_metrics_declare(page, SL_COUNTER, "sluice_log_lines_total", "Lines of the log.");
    for (int level = SL_LOG_ERROR; level <= SL_LOG_TRACE; level++) {
        sl_metrics_sample(page, "sluice_log_lines_total", (double)sl_log_lines((enum sl_log_level)level), "level",
                          levels[level], NULL);
    }
}

void sl_process_write_metrics(FILE *page) {
    write_stat(page);
    write_files(page);
    write_log_lines(page);
}
