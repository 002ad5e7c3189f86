// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: recognizes PDF, HTML and office files, and has a program of the distribution extract their text.
 *
 * Design: the program gets the source as standard input, so no name of a file can look like an option, and writes to a
 *         file in memory. No shell is involved. Its time, its memory and what it writes are bounded.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/child.h"
#include "base/close.h"
#include "client/cli/commands/doc_text.h"

#define LOOK_BYTES     ((size_t)65536) // at the beginning of a file, and at its end
#define MAX_DATA_BYTES ((rlim_t)4 << 30)
#define POLL_MS        5
#define MAX_ARGUMENTS  12
#define REASON_BYTES   200

// ---- formats --------------------------------------------------------------------------------------------------------

// Names of files in archives: Microsoft's, and the "mimetype" of OpenDocument and EPUB, which comes first, uncompressed.
static const struct {
    const char *text;
    enum sl_doc_format format;
} marks[] = {
    {"word/document.xml", SL_DOC_DOCX},
    {"xl/workbook.xml", SL_DOC_XLSX},
    {"ppt/presentation.xml", SL_DOC_PPTX},
    {"mimetypeapplication/vnd.oasis.opendocument.text", SL_DOC_ODT},
    {"mimetypeapplication/vnd.oasis.opendocument.", SL_DOC_OPEN_DOCUMENT},
    {"mimetypeapplication/epub+zip", SL_DOC_EPUB},
};

static bool begins(const char *bytes, size_t n, const char *with) {
    return n >= strlen(with) && strncasecmp(bytes, with, strlen(with)) == 0;
}

static bool is_html(const char *bytes, size_t n) {
    const char *at = bytes, *end = bytes + n;
    at += begins(at, n, "\xef\xbb\xbf") ? 3 : 0;
    for (;;) {
        while (at < end && memchr(" \t\r\n", *at, 4)) {
            at++;
        }
        bool comment = begins(at, (size_t)(end - at), "<!--");
        if (!comment && !begins(at, (size_t)(end - at), "<?xml")) {
            break;
        }
        const char *close = memmem(at, (size_t)(end - at), comment ? "-->" : "?>", comment ? 3 : 2);
        if (!close) {
            return false;
        }
        at = close + (comment ? 3 : 2);
    }
    return begins(at, (size_t)(end - at), "<!doctype html") || begins(at, (size_t)(end - at), "<html");
}

static enum sl_doc_format format_of_archive(const char *bytes, size_t n) {
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        if (memmem(bytes, n, marks[i].text, strlen(marks[i].text))) {
            return marks[i].format;
        }
    }
    return SL_DOC_PLAIN; // no text either, which the reader of texts says
}

enum sl_doc_format sl_doc_format_of(int fd) {
    char *bytes = malloc(2 * LOOK_BYTES);
    off_t size = lseek(fd, 0, SEEK_END);
    ssize_t n = bytes && size >= 0 ? pread(fd, bytes, LOOK_BYTES, 0) : -1;
    enum sl_doc_format format = SL_DOC_PLAIN;
    if (n > 0 && begins(bytes, (size_t)n, "PK\3\4")) { // the directory of an archive is at its end
        off_t end_at = size > (off_t)(2 * LOOK_BYTES) ? size - (off_t)LOOK_BYTES : n;
        ssize_t more = pread(fd, bytes + n, 2 * LOOK_BYTES - (size_t)n, end_at);
        format = format_of_archive(bytes, (size_t)(n + (more > 0 ? more : 0)));
    } else if (n > 0) {
        format = begins(bytes, (size_t)n, "%PDF-")                              ? SL_DOC_PDF
                 : begins(bytes, (size_t)n, "{\\rtf")                           ? SL_DOC_RTF
                 : begins(bytes, (size_t)n, "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1") ? SL_DOC_OFFICE
                 : is_html(bytes, (size_t)n)                                    ? SL_DOC_HTML
                                                                                : SL_DOC_PLAIN;
    }
    free(bytes);
    return format;
}

// ---- programs -------------------------------------------------------------------------------------------------------

#define PANDOC(format)                                                                                                 \
    "pandoc", "pandoc", {                                                                                              \
        "pandoc", "--sandbox", "-f", format, "-t", "plain", "--wrap=none"                                              \
    }

// doc_office.py, compiled in by CMake. It ends with DAMAGED and a last line that says why if the file is at fault.
extern const uint8_t sl_doc_office_script[];
#define OFFICE(format)                                                                                                 \
    "python3", "python3", {                                                                                            \
        "python3", "-IS", "-c", (const char *)sl_doc_office_script, format                                             \
    }
#define DAMAGED 65

// To add one: a row, after those that are better. Each reads standard input and writes UTF-8.
static const struct program {
    enum sl_doc_format format;
    const char *name, *package;
    const char *argv[MAX_ARGUMENTS];
} programs[] = {
    {SL_DOC_PDF, "pdftotext", "poppler-utils", {"pdftotext", "-enc", "UTF-8", "-nopgbrk", "-", "-"}},
    {SL_DOC_HTML,
     "w3m",
     "w3m",
     {"w3m", "-dump", "-cols", "120", "-T", "text/html", "-O", "UTF-8", "-o", "meta_refresh=0"}},
    {SL_DOC_HTML,
     "lynx",
     "lynx",
     {"lynx", "-dump", "-stdin", "-force_html", "-nolist", "-width=120", "-display_charset=UTF-8"}},
    {SL_DOC_HTML, PANDOC("html")},
    {SL_DOC_DOCX, PANDOC("docx")},
    {SL_DOC_ODT, PANDOC("odt")},
    {SL_DOC_EPUB, PANDOC("epub")},
    {SL_DOC_RTF, PANDOC("rtf")},
    {SL_DOC_DOCX, OFFICE("docx")},
    {SL_DOC_ODT, OFFICE("odf")},
    {SL_DOC_PPTX, OFFICE("pptx")},
    {SL_DOC_OPEN_DOCUMENT, OFFICE("odf")},
    {SL_DOC_XLSX, "xlsx2csv", "xlsx2csv", {"xlsx2csv", "-a", "-d", "tab", "/dev/stdin"}},
};

static const char *name_of(enum sl_doc_format format) {
    return format == SL_DOC_PDF ? "a PDF file" : format == SL_DOC_HTML ? "HTML" : "an office file";
}

static enum sl_status choose(enum sl_doc_format format, const char *name, const struct program **program_out,
                             char path[PATH_MAX], struct sl_error *err) {
    char packages[128] = "";
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        if (programs[i].format == format && sl_child_find(programs[i].name, path)) {
            *program_out = &programs[i];
            return SL_OK;
        }
        size_t n = strlen(packages);
        if (programs[i].format == format) {
            snprintf(packages + n, sizeof packages - n, "%s%s", n > 0 ? " or " : "", programs[i].package);
        }
    }
    SL_FAIL_IF(packages[0] == '\0', err, SL_ERR_UNSUPPORTED,
               "%s is an office file of a format before 2007: make a PDF of it first, e.g. with `soffice --headless "
               "--convert-to pdf FILE` (package libreoffice)",
               name);
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "%s is %s, and no program that extracts its text is installed: install the package %s%s", name,
                   name_of(format), packages, format == SL_DOC_HTML ? ", or give --as-is to add its source" : "");
}

// ---- a run of a program ---------------------------------------------------------------------------------------------

struct files {
    int in, out, err, failure;
    rlim_t in_bytes;
};

static void limit(int resource, rlim_t at_most) {
    struct rlimit now;
    if (getrlimit(resource, &now) == 0) {
        struct rlimit less = {at_most < now.rlim_cur ? at_most : now.rlim_cur, now.rlim_max};
        (void)setrlimit(resource, &less); // a lower limit is always allowed
    }
}

static void become(const struct program *program, const char *path, const struct files *files, int64_t timeout_ms,
                   pid_t parent) {
    setpgid(0, 0); // so that the parent can also end what the program starts
    limit(RLIMIT_CPU, (rlim_t)(timeout_ms / 1000 + 1));
    limit(RLIMIT_DATA, MAX_DATA_BYTES);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, files->in_bytes + SL_DOC_TEXT_BYTES + 1); // some programs copy their input into a file
    signal(SIGXFSZ, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    if (sl_child_dies_with(parent) && setenv("LC_ALL", "C.UTF-8", 1) == 0 && dup2(files->in, STDIN_FILENO) >= 0 &&
        dup2(files->out, STDOUT_FILENO) >= 0 && dup2(files->err, STDERR_FILENO) >= 0) {
        execv(path, (char *const *)program->argv);
    }
    int reason = errno;
    ssize_t written = write(files->failure, &reason, sizeof reason);
    (void)written; // if the parent has exited, no process can read this
    _exit(127);
}

static enum sl_status start(const struct program *program, const char *path, struct files *files, int64_t timeout_ms,
                            pid_t *pid_out, struct sl_error *err) {
    int fds[2];
    SL_FAIL_IF(pipe2(fds, O_CLOEXEC) != 0, err, SL_ERR_EXHAUSTED, "%s: pipe: %s", program->name, strerror(errno));
    files->failure = fds[1];
    signal(SIGCHLD, SIG_DFL); // where the caller ignores it, the kernel would take the program's exit status away
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        become(program, path, files, timeout_ms, parent);
    }
    int reason = errno;
    close(fds[1]);
    bool failed = pid > 0 && read(fds[0], &reason, sizeof reason) == (ssize_t)sizeof reason;
    close(fds[0]);
    if (failed) {
        waitpid(pid, NULL, 0);
    }
    SL_FAIL_IF(pid < 0 || failed, err, SL_ERR_IO, "cannot start %s: %s", path, strerror(reason));
    *pid_out = pid;
    return SL_OK;
}

// Waits for the program's end. False: it did not end in time, and was killed.
static bool wait_for(pid_t pid, int64_t timeout_ms, int *wait_status_out) {
    int64_t deadline_ns = sl_deadline_in_ms(timeout_ms);
    siginfo_t end = {0};
    while (waitid(P_PID, (id_t)pid, &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid == 0 &&
           sl_deadline_left_ms(deadline_ns) > 0) {
        sl_sleep_ms(POLL_MS);
    }
    kill(-pid, SIGKILL); // also processes that the program has left; its own end is not fetched, so the number is ours
    waitpid(pid, wait_status_out, 0);
    return end.si_pid != 0;
}

// Writes the last line of what the program wrote as errors, printable characters only.
static void last_line(int fd, char line_out[REASON_BYTES]) {
    off_t size = lseek(fd, 0, SEEK_END), from = size > REASON_BYTES - 1 ? size - (REASON_BYTES - 1) : 0;
    ssize_t n = size > 0 ? pread(fd, line_out, REASON_BYTES - 1, from) : 0;
    while (n > 0 && strchr("\r\n \t", line_out[n - 1])) {
        n--;
    }
    line_out[n > 0 ? n : 0] = '\0';
    const char *newline = strrchr(line_out, '\n');
    if (newline) {
        memmove(line_out, newline + 1, strlen(newline + 1) + 1);
    }
    for (char *at = line_out; *at; at++) {
        *at = (unsigned char)*at < ' ' || *at == 0x7f ? '?' : *at;
    }
}

static enum sl_status judge(const struct program *program, int wait_status, const struct files *files, const char *name,
                            struct sl_error *err) {
    off_t n = lseek(files->out, 0, SEEK_END);
    SL_FAIL_IF(n > (off_t)SL_DOC_TEXT_BYTES, err, SL_ERR_INVALID,
               "%s has a text of more than %zu bytes, the most of a document: split it", name, SL_DOC_TEXT_BYTES);
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) {
        return SL_OK;
    }
    char line[REASON_BYTES], end[64];
    struct sl_child child = {.wait_status = wait_status};
    last_line(files->err, line);
    bool is_damaged = program->argv[3] == (const char *)sl_doc_office_script && WIFEXITED(wait_status) &&
                      WEXITSTATUS(wait_status) == DAMAGED;
    SL_FAIL_IF(is_damaged, err, SL_ERR_INVALID, "%s %s", name, line);
    return sl_fail(err, SL_ERR_IO, "%s: %s %s%s%s", name, program->name, sl_child_describe_end(&child, end, sizeof end),
                   line[0] ? ": " : "", line);
}

static enum sl_status run(const struct program *program, const char *path, int64_t timeout_ms, struct files *files,
                          const char *name, struct sl_error *err) {
    pid_t pid = 0;
    int wait_status = 0;
    SL_TRY(start(program, path, files, timeout_ms, &pid, err));
    SL_FAIL_IF(!wait_for(pid, timeout_ms, &wait_status), err, SL_ERR_DEADLINE, "%s: %s did not end within %lld s", name,
               program->name, (long long)(timeout_ms / 1000));
    return judge(program, wait_status, files, name, err);
}

enum sl_status sl_doc_convert(const struct sl_doc_source *source, int fd, enum sl_doc_format format, const char *name,
                              FILE **file_out, struct sl_error *err) {
    const struct program *program = NULL;
    char path[PATH_MAX];
    enum sl_status status;
    struct stat found;
    struct files files = {
        .in = fd, .out = memfd_create("text", MFD_CLOEXEC), .err = memfd_create("errors", MFD_CLOEXEC)};
    FILE *file = files.out >= 0 ? fdopen(files.out, "rb") : NULL;
    if (fstat(fd, &found) == 0) {
        files.in_bytes = (rlim_t)found.st_size;
    }
    if (!file || files.err < 0 || lseek(fd, 0, SEEK_SET) != 0) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "%s: no memory for its text: %s", name, strerror(errno));
    } else {
        status = choose(format, name, &program, path, err);
        SL_THEN(status, run(program, path, source->timeout_ms, &files, name, err));
    }
    if (status == SL_OK && source->notes) {
        fprintf(source->notes, "%s is %s: %s extracted %lld bytes of text\n", name, name_of(format), program->name,
                (long long)lseek(files.out, 0, SEEK_END));
    }
    sl_close(files.err);
    if (status == SL_OK) {
        *file_out = file;
    } else if (file) {
        fclose(file);
    } else {
        sl_close(files.out);
    }
    return status;
}
