// SPDX-License-Identifier: Apache-2.0
// Purpose: a document's source becomes its text: formats by content, programs that extract text and their failures, and
// folders. Scripts stand in for the programs; those that are installed are run too.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>

#include "base/clock.h"
#include "base/child.h"
#include "client/cli/commands/doc_text.h"

static char folder[] = "/tmp/sluice-test-doc-text-XXXXXX", path_before[4096];

static int set_up(void **state) {
    (void)state;
    snprintf(path_before, sizeof path_before, "%s", getenv("PATH"));
    return mkdtemp(folder) && chdir(folder) == 0 && mkdir("bin", 0700) == 0 && setenv("PATH", "bin", 1) == 0 ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *found, int kind, struct FTW *at) {
    (void)found, (void)kind, (void)at;
    return remove(path);
}

static int clean_up(void **state) {
    (void)state;
    setenv("PATH", path_before, 1);
    return chdir("/") == 0 ? nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS) : -1;
}

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void write_script(const char *name, const char *lines) {
    char path[64], text[512];
    snprintf(path, sizeof path, "bin/%s", name);
    snprintf(text, sizeof text, "#!/bin/sh\n%s\n", lines);
    unlink(path);
    write_file(path, text, strlen(text));
    assert_int_equal(chmod(path, 0700), 0);
}

static enum sl_status read_source(const char *path, char **text_out, struct sl_error *err) {
    struct sl_doc_source source = {.path = path, .timeout_ms = 20000};
    *text_out = NULL;
    return sl_doc_text_read(&source, text_out, err);
}

static void assert_read(const char *path, const char *expected) {
    char *text;
    struct sl_error err = {0};
    if (read_source(path, &text, &err) != SL_OK) {
        fail_msg("%s: %s", path, err.text);
    }
    assert_string_equal(text, expected);
    free(text);
}

static void assert_refused(const char *path, enum sl_status expected, const char *with) {
    char *text;
    struct sl_error err = {0};
    enum sl_status status = read_source(path, &text, &err);
    if (status != expected || !strstr(err.text, with)) {
        fail_msg("%s: status %d: %s", path, status, err.text);
    }
    assert_null(text);
}

static void test_doc_text_formats_are_recognized_by_content(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        enum sl_doc_format format;
    } cases[] = {
#define CASE(text, format) {text, sizeof(text) - 1, format}
        CASE("", SL_DOC_PLAIN),
        CASE("plain", SL_DOC_PLAIN),
        CASE("%PDF-1.7\n", SL_DOC_PDF),
        CASE(" %PDF-1.7\n", SL_DOC_PLAIN),
        CASE("<!DOCTYPE HTML><p>", SL_DOC_HTML),
        CASE("\xef\xbb\xbf\n<!-- <html> --> <?xml version='1.0'?>\n<html lang=en>", SL_DOC_HTML),
        CASE("<!-- <html>", SL_DOC_PLAIN),
        CASE("\0<html>", SL_DOC_PLAIN),
        CASE("<?xml version='1.0'?><svg>", SL_DOC_PLAIN),
        CASE("#include <html>", SL_DOC_PLAIN),
        CASE("{\\rtf1 text}", SL_DOC_RTF),
        CASE("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", SL_DOC_OFFICE),
        CASE("PK\3\4 [Content_Types].xml ... word/document.xml", SL_DOC_DOCX),
        CASE("PK\3\4 [Content_Types].xml ... xl/workbook.xml", SL_DOC_XLSX),
        CASE("PK\3\4 [Content_Types].xml ... ppt/presentation.xml", SL_DOC_PPTX),
        CASE("PK\3\4 ... mimetypeapplication/vnd.oasis.opendocument.text", SL_DOC_ODT),
        CASE("PK\3\4 ... mimetypeapplication/vnd.oasis.opendocument.spreadsheet", SL_DOC_OPEN_DOCUMENT),
        CASE("PK\3\4 ... mimetypeapplication/vnd.oasis.opendocument.presentation", SL_DOC_OPEN_DOCUMENT),
        CASE("PK\3\4 ... mimetypeapplication/epub+zip", SL_DOC_EPUB),
        CASE("PK\3\4 other.txt", SL_DOC_PLAIN),
        CASE("word/document.xml", SL_DOC_PLAIN),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fd = memfd_create("case", 0);
        assert_int_equal(write(fd, cases[i].bytes, cases[i].n), cases[i].n);
        if (sl_doc_format_of(fd) != cases[i].format) {
            fail_msg("case %zu", i);
        }
        close(fd);
    }
    // The name is in the directory of the archive, at its end.
    int fd = memfd_create("archive", 0);
    assert_int_equal(write(fd, "PK\3\4", 4), 4);
    assert_int_equal(pwrite(fd, "word/document.xml", 17, 1 << 20), 17);
    assert_int_equal(sl_doc_format_of(fd), SL_DOC_DOCX);
    close(fd);
}

static void test_doc_text_plain(void **state) {
    (void)state;
    write_file("plain.pdf", "no PDF in spite of its name", 27);
    assert_read("plain.pdf", "no PDF in spite of its name");
    write_file("zero", "a\0b", 3);
    assert_refused("zero", SL_ERR_INVALID, "zero byte");
    write_file("latin", "caf\xe9", 4);
    assert_refused("latin", SL_ERR_INVALID, "UTF-8");
    assert_refused("nothing", SL_ERR_INVALID, "No such file");
    char *large = malloc(SL_DOC_TEXT_BYTES + 1);
    memset(large, 'a', SL_DOC_TEXT_BYTES + 1);
    write_file("large", large, SL_DOC_TEXT_BYTES + 1);
    assert_refused("large", SL_ERR_INVALID, "split it");
    write_file("large", large, SL_DOC_TEXT_BYTES);
    char *text;
    struct sl_error err;
    assert_int_equal(read_source("large", &text, &err), SL_OK);
    assert_int_equal(strlen(text), SL_DOC_TEXT_BYTES);
    free(text);
    free(large);
}

static void test_doc_text_names_the_missing_package(void **state) {
    (void)state;
    write_file("a.txt", "%PDF-1.4 x", 10);
    assert_refused("a.txt", SL_ERR_UNSUPPORTED, "a.txt is a PDF file, and no program");
    assert_refused("a.txt", SL_ERR_UNSUPPORTED, "poppler-utils");
    write_file("a.html", "<html>x", 7);
    assert_refused("a.html", SL_ERR_UNSUPPORTED, "w3m or lynx or pandoc, or give --as-is");
    write_file("a.doc", "{\\rtf1 x}", 9);
    assert_refused("a.doc", SL_ERR_UNSUPPORTED, "pandoc");
    write_file("a.xlsx", "PK\3\4 xl/workbook.xml", 20);
    assert_refused("a.xlsx", SL_ERR_UNSUPPORTED, "install the package xlsx2csv");
    write_file("old.xls", "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", 8);
    assert_refused("old.xls", SL_ERR_UNSUPPORTED, "soffice --headless --convert-to pdf");
    struct sl_doc_source source = {.path = "a.html", .as_is = true};
    char *text;
    struct sl_error err;
    assert_int_equal(sl_doc_text_read(&source, &text, &err), SL_OK);
    assert_string_equal(text, "<html>x");
    free(text);
}

// Writes an archive of n files: a path and a content each.
static void write_archive(const char *path, const char *const (*files)[2], size_t n) {
    int code;
    unlink(path);
    zip_t *archive = zip_open(path, ZIP_CREATE, &code);
    assert_non_null(archive);
    for (size_t i = 0; i < n; i++) {
        zip_source_t *content = zip_source_buffer(archive, files[i][1], strlen(files[i][1]), 0);
        zip_int64_t at = zip_file_add(archive, files[i][0], content, 0);
        assert_true(at >= 0);
        if (i == 0) {
            assert_int_equal(zip_set_file_compression(archive, (zip_uint64_t)at, ZIP_CM_STORE, 0), 0);
        }
    }
    assert_int_equal(zip_close(archive), 0);
}
#define ARCHIVE(path, ...)                                                                                             \
    do {                                                                                                               \
        static const char *const files[][2] = {__VA_ARGS__};                                                           \
        write_archive(path, files, sizeof files / sizeof *files);                                                      \
    } while (0)

#define SLIDE(text)         "<p:sld xmlns:a='x'><p:txBody>" text "</p:txBody></p:sld>"
#define LINE(text)          "<a:p><a:r><a:rPr/><a:t>" text "</a:t></a:r></a:p>"
#define RELATED(id, target) "<Relationship Type=\"http://x/slide\" Target=\"" target "\" Id=\"" id "\"/>"
#define ODF(kind)                                                                                                      \
    { "mimetype", "application/vnd.oasis.opendocument." kind }

static char long_slide[1 << 16], shown_often[4096];

// Installs python3, which reads office files.
static void write_python(void) {
    write_script("python3", "exec /usr/bin/python3 \"$@\"");
}

static void test_doc_text_slides_in_the_order_shown(void **state) {
    (void)state;
    write_python();
    ARCHIVE("talk.pptx", {"[Content_Types].xml", "<Types/>"},
            {"ppt/presentation.xml", "<?xml version='1.0'?><!-- <p:sldId r:id='rId1'/> --><p:presentation><p:sldIdLst>"
                                     "<p:sldId id=\"256\" r:id=\"rId3\"/><p:sldId id=\"257\" r:id='rId12'/>"
                                     "<p:sldId id=\"258\" r:id=\"rId1\"/></p:sldIdLst></p:presentation>"},
            {"ppt/_rels/presentation.xml.rels",
             "<Relationships>" RELATED("rId1", "slides/slide1.xml") RELATED("rId12", "/ppt/slides/slide2.xml")
                 RELATED("rId3", "slides/slide3.xml") "</Relationships>"},
            {"ppt/slides/slide1.xml", SLIDE(LINE("last") "<a:tbl><a:tr><a:tc>" LINE("a")
                                                LINE("b") "</a:tc><a:tc>" LINE("c") "</a:tc></a:tr></a:tbl>")},
            {"ppt/slides/slide2.xml",
             SLIDE(LINE("R&amp;D &lt;&#233;&#x1F600;&gt; <![CDATA[a<b & c]]>") "<a:p><a:r><a:t>two</a:t></a:r><a:br/"
                                                                               "><a:r><a:t>lines</a:t></a:r></a:p>")},
            {"ppt/slides/slide3.xml", SLIDE(LINE("The number is 48213.") "<dc:x>no text</dc:x>")});
    assert_read("talk.pptx",
                "The number is 48213.\n\nR&D <\xc3\xa9\xf0\x9f\x98\x80> a<b & c\ntwo\nlines\n\nlast\na b\tc\n");
    assert_int_equal(truncate("talk.pptx", 400), 0);
    assert_refused("talk.pptx", SL_ERR_INVALID, "talk.pptx is damaged");
    ARCHIVE("lost.pptx", {"ppt/presentation.xml", "<p:sldId r:id='rId1'/>"},
            {"ppt/_rels/presentation.xml.rels", RELATED("rId1", "slides/slide1.xml")});
    assert_refused("lost.pptx", SL_ERR_INVALID, "lost.pptx is damaged: it has no ppt/slides/slide1.xml");
    ARCHIVE("none.pptx", {"ppt/presentation.xml", "<p:sldIdLst/>"},
            {"ppt/_rels/presentation.xml.rels", "<Relationships/>"});
    assert_refused("none.pptx", SL_ERR_INVALID, "has no text");
    ARCHIVE("cut.pptx", {"ppt/presentation.xml", "<p:sldIdLst><p:sldId"},
            {"ppt/_rels/presentation.xml.rels", "<Relationships/>"});
    assert_refused("cut.pptx", SL_ERR_INVALID, "cut.pptx is damaged: ppt/presentation.xml: ");
    ARCHIVE("lol.pptx", {"ppt/presentation.xml", "<!DOCTYPE x [<!ENTITY a 'lol'>]><x>&a;&a;</x>"});
    assert_refused("lol.pptx", SL_ERR_INVALID, "lol.pptx is damaged: ppt/presentation.xml defines entities");
    // A small file of many slides: what is too much is not read to its end.
    memset(long_slide, ' ', sizeof long_slide - 1);
    memcpy(long_slide, "<a:t>", 5);
    strcpy(long_slide + sizeof long_slide - 7, "</a:t>");
    strcpy(shown_often, "<p>");
    for (int i = 0; i < 100; i++) {
        strcat(shown_often, i < 99 ? "<p:sldId r:id='rId1'/>" : "<p:sldId r:id='rId2'/></p>");
    }
    ARCHIVE("many.pptx", {"ppt/presentation.xml", shown_often},
            {"ppt/_rels/presentation.xml.rels", "<Relationships>" RELATED("rId1", "slides/slide1.xml")
                                                    RELATED("rId2", "slides/lost.xml") "</Relationships>"},
            {"ppt/slides/slide1.xml", long_slide});
    assert_refused("many.pptx", SL_ERR_INVALID, "many.pptx has a text of more than 4000000 bytes");
    write_file("zipfile.py", "raise SystemExit('ours')", 24); // the folder's own modules do not count
    assert_refused("none.pptx", SL_ERR_INVALID, "has no text");
    assert_int_equal(unlink("bin/python3"), 0);
    assert_refused("none.pptx", SL_ERR_UNSUPPORTED, "install the package python3");
}

static void test_doc_text_open_document(void **state) {
    (void)state;
    write_python();
    ARCHIVE(
        "sheet.ods", ODF("spreadsheet"),
        {"content.xml",
         "<office:spreadsheet><table:table table:name='A'>"
         "<table:table-row><table:table-cell><text:p>name</text:p></table:table-cell><table:table-cell "
         "table:number-columns-repeated=\"2\"/><table:table-cell office:value='48213'><office:annotation><text:p>a "
         "comment</text:p></office:annotation><text:p>48,213</text:p><text:p>kg</text:p></table:table-cell>"
         "<table:table-cell table:number-columns-repeated='16384'/></table:table-row>"
         "<table:table-row table:number-rows-repeated='1000000'><table:table-cell/></table:table-row>"
         "<table:table-row><table:covered-table-cell/><table:table-cell><text:p>1 &gt; 0</text:p></table:table-cell>"
         "</table:table-row></table:table>"
         "<table:table><table:table-row><table:table-cell><text:p>next</text:p></table:table-cell></table:table-row>"
         "</table:table></office:spreadsheet>"});
    assert_read("sheet.ods", "name\t\t\t48,213 kg\n\t1 > 0\n\nnext\n");
    ARCHIVE("letter.odt", ODF("text"),
            {"content.xml", "<office:text><text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
                            "<text:h>Title</text:h>\n  <text:p>a<text:s text:c='3'/>b<text:tab/>c<text:line-break/>d "
                            "<text:span>e</text:span></text:p></office:text>"});
    assert_read("letter.odt", "Title\na   b\tc\nd e\n");
    ARCHIVE("talk.odp", ODF("presentation"),
            {"content.xml", "<office:presentation><draw:page><text:p>slide</text:p><presentation:notes><text:p>say it"
                            "</text:p></presentation:notes></draw:page><draw:page><text:p>slide 2</text:p></draw:page>"
                            "</office:presentation>"});
    assert_read("talk.odp", "slide\nslide 2\n");
    ARCHIVE("empty.odp", ODF("presentation"), {"other.xml", ""});
    assert_refused("empty.odp", SL_ERR_INVALID, "it has no content.xml");
    ARCHIVE("report.docx", {"[Content_Types].xml", ""},
            {"word/document.xml", "<w:body><w:p><w:r><w:t xml:space=\"preserve\">A "
                                  "</w:t></w:r><w:r><w:delText>not</w:delText><w:tab/><w:t>B</w:t></w:r></w:p>"
                                  "<w:p><w:r><w:t>C</w:t></w:r></w:p></w:body>"});
    assert_read("report.docx", "A \tB\nC\n");
    write_script("pandoc", "echo \"pandoc $3\""); // it does it better
    assert_read("report.docx", "pandoc docx\n");
    assert_read("letter.odt", "pandoc odt\n");
    assert_read("sheet.ods", "name\t\t\t48,213 kg\n\t1 > 0\n\nnext\n");
    assert_int_equal(unlink("bin/pandoc"), 0);
    // A small file with a large text.
    char *text = malloc(SL_DOC_TEXT_BYTES + 64);
    assert_non_null(text);
    strcpy(text, "<text:p>");
    memset(text + 8, 'a', SL_DOC_TEXT_BYTES);
    strcpy(text + 8 + SL_DOC_TEXT_BYTES, "</text:p>");
    const char *const large[][2] = {ODF("spreadsheet"), {"content.xml", text}};
    write_archive("large.ods", large, 2);
    assert_refused("large.ods", SL_ERR_INVALID, "split it");
    free(text);
    assert_int_equal(unlink("bin/python3"), 0);
}

static void test_doc_text_workbook(void **state) {
    (void)state;
    char found[PATH_MAX];
    ARCHIVE("book.xlsx",
            {"[Content_Types].xml",
             "<Types><Override PartName='/xl/workbook.xml' "
             "ContentType='application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml'/><Override "
             "PartName='/xl/sharedStrings.xml' "
             "ContentType='application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml'/></Types>"},
            {"xl/workbook.xml", "<workbook xmlns='http://schemas.openxmlformats.org/spreadsheetml/2006/main' "
                                "xmlns:r='http://schemas.openxmlformats.org/officeDocument/2006/"
                                "relationships'><sheets><sheet name='S' sheetId='1' r:id='rId1'/></sheets></workbook>"},
            {"xl/_rels/workbook.xml.rels", "<Relationships><Relationship Id='rId1' "
                                           "Type='http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
                                           "worksheet' Target='worksheets/sheet1.xml'/></Relationships>"},
            {"xl/sharedStrings.xml", "<sst><si><t>number</t></si></sst>"},
            {"xl/worksheets/sheet1.xml",
             "<worksheet xmlns='http://schemas.openxmlformats.org/spreadsheetml/2006/main'><sheetData><row r='1'><c "
             "r='A1' t='s'><v>0</v></c><c r='B1'><v>48213</v></c></row></sheetData></worksheet>"});
    write_script("xlsx2csv", "echo \"$*\"; /bin/cat $5 | /usr/bin/head -c 2");
    assert_read("book.xlsx", "-a -d tab /dev/stdin\nPK");
    assert_int_equal(unlink("bin/xlsx2csv"), 0);
    setenv("PATH", path_before, 1);
    if (sl_child_find("xlsx2csv", found)) {
        char *text;
        struct sl_error err = {0};
        assert_int_equal(read_source("book.xlsx", &text, &err), SL_OK);
        assert_non_null(strstr(text, "number\t48213"));
        free(text);
    }
    setenv("PATH", "bin", 1);
}

static void test_doc_text_program_gets_standard_input_and_no_name(void **state) {
    (void)state;
    write_script("pdftotext", "/bin/cat; echo \"|$*|$LC_ALL\"");
    write_file("-upw", "%PDF-1.4 x\n", 11);
    assert_read("-upw", "%PDF-1.4 x\n|-enc UTF-8 -nopgbrk - -|C.UTF-8\n");
    write_file("a b;c", "%PDF-1.5 y\n", 11);
    assert_read("a b;c", "%PDF-1.5 y\n|-enc UTF-8 -nopgbrk - -|C.UTF-8\n");
    // Standard input, from its middle on.
    int saved = dup(STDIN_FILENO);
    assert_non_null(freopen("a b;c", "rb", stdin));
    assert_int_equal(lseek(STDIN_FILENO, 0, SEEK_SET), 0);
    assert_read("-", "%PDF-1.5 y\n|-enc UTF-8 -nopgbrk - -|C.UTF-8\n");
    write_file("middle", "no%PDF-1.5 y\n", 13);
    assert_non_null(freopen("middle", "rb", stdin));
    assert_int_equal(lseek(STDIN_FILENO, 2, SEEK_SET), 2);
    assert_read("-", "%PDF-1.5 y\n|-enc UTF-8 -nopgbrk - -|C.UTF-8\n");
    assert_int_equal(dup2(saved, STDIN_FILENO), STDIN_FILENO);
    close(saved);
    // The second program, where the first is not installed.
    write_script("lynx", "echo lynx \"$1\"");
    write_file("page", "<html>x", 7);
    assert_read("page", "lynx -dump\n");
}

static void test_doc_text_program_may_copy_its_input_into_a_file(void **state) {
    (void)state;
    char *large = malloc(3 * SL_DOC_TEXT_BYTES);
    assert_non_null(large);
    memset(large, 'a', 3 * SL_DOC_TEXT_BYTES);
    memcpy(large, "%PDF-1.4 x", 10);
    write_file("scan.pdf", large, 3 * SL_DOC_TEXT_BYTES);
    free(large);
    write_script("pdftotext", "/bin/cat > copy && echo text");
    assert_read("scan.pdf", "text\n");
    struct stat copied;
    assert_int_equal(stat("copy", &copied), 0);
    assert_int_equal(copied.st_size, 3 * SL_DOC_TEXT_BYTES);
}

static void test_doc_text_where_the_caller_ignores_its_children(void **state) {
    (void)state;
    write_file("a.pdf", "%PDF-1.4 x", 10);
    write_script("pdftotext", "exit 3");
    signal(SIGCHLD, SIG_IGN);
    assert_refused("a.pdf", SL_ERR_IO, "pdftotext exited with code 3");
    signal(SIGCHLD, SIG_DFL);
}

static void test_doc_text_failures_of_a_program(void **state) {
    (void)state;
    write_file("a.pdf", "%PDF-1.4 x", 10);
    write_script("pdftotext", "echo text; echo first >&2; echo 'Incorrect\tpassword' >&2; exit 3");
    assert_refused("a.pdf", SL_ERR_IO, "a.pdf: pdftotext exited with code 3: Incorrect?password");
    write_script("pdftotext", "kill -9 $$");
    assert_refused("a.pdf", SL_ERR_IO, "was killed by signal 9");
    write_script("pdftotext", "exec /usr/bin/yes");
    assert_refused("a.pdf", SL_ERR_INVALID, "more than 4000000 bytes");
    write_script("pdftotext", "trap '' XFSZ; while echo 0123456789012345678901234567890123456789; do :; done; exit 0");
    assert_refused("a.pdf", SL_ERR_INVALID, "more than 4000000 bytes");
    write_script("pdftotext", "printf ' \\n\\f'");
    assert_refused("a.pdf", SL_ERR_INVALID, "has no text, as scanned pages");
    write_script("pdftotext", "printf 'a\\377'");
    assert_refused("a.pdf", SL_ERR_INVALID, "not valid UTF-8");
    write_file("bin/pdftotext",
               "\x7f"
               "ELF",
               4);
    assert_refused("a.pdf", SL_ERR_IO, "cannot start bin/pdftotext");

    // One that does not end is killed, with what it started.
    write_script("pdftotext", "/bin/sleep 60 & echo $! > child; wait");
    struct sl_doc_source source = {.path = "a.pdf", .timeout_ms = 400};
    struct sl_error err = {0};
    char *text = NULL, digits[16] = "";
    int64_t began_ns = sl_now_ns();
    assert_int_equal(sl_doc_text_read(&source, &text, &err), SL_ERR_DEADLINE);
    assert_true(sl_now_ns() - began_ns < 20 * SL_NS_PER_S);
    assert_non_null(strstr(err.text, "did not end"));
    FILE *file = fopen("child", "r");
    assert_non_null(file);
    assert_non_null(fgets(digits, sizeof digits, file));
    fclose(file);
    char status_path[64], line[256] = "";
    snprintf(status_path, sizeof status_path, "/proc/%ld/stat", strtol(digits, NULL, 10));
    for (int i = 0; i < 400 && (file = fopen(status_path, "r")); i++) { // it is gone, or a zombie of another parent
        bool has_line = fgets(line, sizeof line, file) != NULL;
        fclose(file);
        if (has_line && strstr(line, ") Z")) {
            break;
        }
        assert_true(i < 399);
        sl_sleep_ms(10);
    }
}

static void test_doc_text_folder(void **state) {
    (void)state;
    assert_int_equal(mkdir("code", 0700) || mkdir("code/.git", 0700) || mkdir("code/b", 0700), 0);
    write_file("code/.git/config", "secret", 6);
    write_file("code/b/z.c", "int z;", 6);
    write_file("code/b/a.c", "int a;\n", 7);
    write_file("code/B.txt", "<html>stays", 11);
    write_file("code/c.bin", "\0\1", 2);
    write_file("code/c.latin", "\xe9", 1);
    write_file("code/empty", "", 0);
    assert_int_equal(symlink("..", "code/loop") || mkfifo("code/pipe", 0600), 0);
    char *notes = NULL, *text = NULL;
    size_t n_notes;
    FILE *stream = open_memstream(&notes, &n_notes);
    struct sl_doc_source source = {.path = "code/", .timeout_ms = 1000, .notes = stream};
    struct sl_error err = {0};
    assert_int_equal(sl_doc_text_read(&source, &text, &err), SL_OK);
    fclose(stream);
    assert_string_equal(text, "==== B.txt ====\n<html>stays\n\n==== b/a.c ====\nint a;\n\n==== b/z.c ====\nint z;\n\n"
                              "==== empty ====\n");
    assert_non_null(strstr(notes, "code/: 4 text files; skipped: 2 that are not text, 3 others"));
    free(text);
    free(notes);

    char *large = malloc(SL_DOC_TEXT_BYTES + 1);
    memset(large, 'a', SL_DOC_TEXT_BYTES + 1);
    write_file("code/large", large, SL_DOC_TEXT_BYTES - 60);
    assert_refused("code", SL_ERR_INVALID, "at large: name a smaller folder");
    write_file("code/large", large, SL_DOC_TEXT_BYTES + 1);
    assert_refused("code", SL_ERR_INVALID, "at large: name a smaller folder");
    large[10] = '\0';
    write_file("code/large", large, SL_DOC_TEXT_BYTES + 1);
    assert_int_equal(read_source("code", &text, &err), SL_OK); // no text, so its size does not count
    free(text);
    free(large);
    assert_int_equal(mkdir("none", 0700), 0);
    assert_refused("none", SL_ERR_INVALID, "no text file");
}

// Writes a PDF file of one page.
static void write_pdf(const char *path) {
    static const char stream[] = "BT /F1 12 Tf 20 100 Td (The number is 48213.) Tj ET";
    char objects[5][256], pdf[2048];
    int at[5], n = snprintf(pdf, sizeof pdf, "%%PDF-1.4\n");
    strcpy(objects[0], "<< /Type /Catalog /Pages 2 0 R >>");
    strcpy(objects[1], "<< /Type /Pages /Kids [3 0 R] /Count 1 >>");
    strcpy(objects[2],
           "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents 4 0 R /Resources << /Font << /F1 5 "
           "0 R >> >> >>");
    snprintf(objects[3], sizeof objects[3], "<< /Length %zu >>\nstream\n%s\nendstream", sizeof stream - 1, stream);
    strcpy(objects[4], "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>");
    for (int i = 0; i < 5; i++) {
        at[i] = n;
        n += snprintf(pdf + n, sizeof pdf - (size_t)n, "%d 0 obj\n%s\nendobj\n", i + 1, objects[i]);
    }
    int table = n;
    n += snprintf(pdf + n, sizeof pdf - (size_t)n, "xref\n0 6\n0000000000 65535 f \n");
    for (int i = 0; i < 5; i++) {
        n += snprintf(pdf + n, sizeof pdf - (size_t)n, "%010d 00000 n \n", at[i]);
    }
    n +=
        snprintf(pdf + n, sizeof pdf - (size_t)n, "trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n", table);
    write_file(path, pdf, (size_t)n);
}

static void test_doc_text_installed_programs(void **state) {
    (void)state;
    static const char *const readers[] = {"w3m", "lynx", "pandoc"};
    static const char page[] =
        "<html><body><h1>Hi</h1><script>var x;</script><p>The <b>number</b> is caf&eacute;.</body></html>";
    char found[PATH_MAX];
    setenv("PATH", path_before, 1);
    write_pdf("real.pdf");
    if (sl_child_find("pdftotext", found)) {
        char *text;
        struct sl_error err = {0};
        assert_int_equal(read_source("real.pdf", &text, &err), SL_OK);
        assert_non_null(strstr(text, "The number is 48213."));
        free(text);
        assert_int_equal(truncate("real.pdf", 300), 0);
        assert_refused("real.pdf", SL_ERR_IO, "pdftotext exited with code 1");
    } else {
        assert_refused("real.pdf", SL_ERR_UNSUPPORTED, "poppler-utils");
    }
    write_file("real.html", page, sizeof page - 1);
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        char script[PATH_MAX + 32], *text;
        struct sl_error err = {0};
        setenv("PATH", path_before, 1);
        if (!sl_child_find(readers[i], found)) {
            continue;
        }
        assert_int_equal(mkdir("one", 0700), 0);
        snprintf(script, sizeof script, "one/%s", readers[i]);
        assert_int_equal(symlink(found, script), 0);
        setenv("PATH", "one", 1);
        enum sl_status status = read_source("real.html", &text, &err);
        setenv("PATH", path_before, 1);
        if (status != SL_OK || !strstr(text, "The number is caf\xc3\xa9.") || strstr(text, "var x")) {
            fail_msg("%s: %s%s", readers[i], err.text, text ? text : "");
        }
        free(text);
        assert_int_equal(unlink(script) || rmdir("one"), 0);
    }
    setenv("PATH", "bin", 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doc_text_formats_are_recognized_by_content),
        cmocka_unit_test(test_doc_text_slides_in_the_order_shown),
        cmocka_unit_test(test_doc_text_open_document),
        cmocka_unit_test(test_doc_text_workbook),
        cmocka_unit_test(test_doc_text_plain),
        cmocka_unit_test(test_doc_text_names_the_missing_package),
        cmocka_unit_test(test_doc_text_program_gets_standard_input_and_no_name),
        cmocka_unit_test(test_doc_text_program_may_copy_its_input_into_a_file),
        cmocka_unit_test(test_doc_text_where_the_caller_ignores_its_children),
        cmocka_unit_test(test_doc_text_failures_of_a_program),
        cmocka_unit_test(test_doc_text_folder),
        cmocka_unit_test(test_doc_text_installed_programs),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
