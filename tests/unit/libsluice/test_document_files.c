// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how an import ends that its caller stops. The coordinator is a real gRPC server, for which a file is whole when it
 * has FILE_BYTES.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/clock.h"
#include "client/libsluice/sluice.h"
#include "net/rpc/rpc.h"
#include "proto/methods.h"

#define FILE_BYTES 1000

static struct sl_rpc_server *server;

static enum sl_status handle_import(void *service, struct sl_rpc_call *call, const ProtobufCMessage *no_request,
                                    struct sl_error *err) {
    (void)service, (void)no_request;
    ProtobufCMessage *message;
    size_t n = 0;
    while (sl_rpc_call_receive(call, &sluice__v1__import_document_request__descriptor, &message, err) == SL_OK) {
        n += ((const Sluice__V1__ImportDocumentRequest *)message)->data.len;
        protobuf_c_message_free_unpacked(message, NULL);
    }
    Sluice__V1__Document document = SLUICE__V1__DOCUMENT__INIT;
    document.name = (char *)"gpl";
    return n == FILE_BYTES ? sl_rpc_call_send(call, &document.base)
                           : sl_fail(err, SL_ERR_INVALID, "file: cut short: it ends in its text");
}

static const struct sl_rpc_handler handlers[] = {{&sl_method_documents_import, handle_import, SL_ROLE_ANY}};
static const struct sl_rpc_method *const methods[] = {&sl_method_documents_import};
static const struct sl_rpc_service documents = {"sluice.v1.Documents", methods, 1};
static const struct sl_rpc_implementation service = {.service = &documents, .handlers = handlers, .n_handlers = 1};

// A file that is read a hundred bytes at a time.
struct reading {
    size_t n, stops_after; // bytes
    bool fails;            // instead of being stopped
};

static enum sl_status read_piece(void *arg, void *bytes_out, size_t size, size_t *n_out, struct sl_error *err) {
    struct reading *reading = arg;
    SL_FAIL_IF(reading->fails && reading->n >= reading->stops_after, err, SL_ERR_IO, "the disk is broken");
    *n_out = FILE_BYTES - reading->n < 100 ? FILE_BYTES - reading->n : 100;
    assert_true(*n_out <= size);
    memset(bytes_out, 'a', *n_out);
    reading->n += *n_out;
    return SL_OK;
}

static bool stopped(void *arg) {
    const struct reading *reading = arg;
    return !reading->fails && reading->n >= reading->stops_after;
}

static enum sl_status import_file(struct sl_client *client, struct reading reading, Sluice__V1__Document **document_out,
                                  struct sl_error *err) {
    const struct sl_document_pieces pieces = {
        .deadline_ns = sl_deadline_in_ms(20000), .read_fn = read_piece, .stopped = stopped, .arg = &reading};
    *document_out = NULL;
    return sl_client_import_document(client, "gpl", "", 0, &pieces, document_out, err);
}

// The cluster has kept a document whose import was stopped after the last byte, and so the import did not fail.
static void test_import_that_is_stopped_says_what_was_kept(void **state) {
    struct sl_client *client = *state;
    Sluice__V1__Document *document;
    struct sl_error err;
    for (int fails = 0; fails < 2; fails++) {
        for (size_t n = 0; n < FILE_BYTES; n += 300) {
            assert_int_equal(import_file(client, (struct reading){0, n, fails}, &document, &err),
                             fails ? SL_ERR_IO : SL_ERR_CANCELLED);
            assert_string_equal(err.text, fails ? "the disk is broken" : "stopped; nothing was kept");
            assert_null(document);
        }
        assert_int_equal(import_file(client, (struct reading){0, FILE_BYTES, fails}, &document, &err), SL_OK);
        assert_string_equal(document->name, "gpl");
        sluice__v1__document__free_unpacked(document, NULL);
    }
}

static int setup(void **state) {
    struct sl_rpc_server_config config = {.listen = "127.0.0.1:0", .services = &service, .n_services = 1};
    struct sl_client *client = NULL;
    assert_int_equal(sl_rpc_server_start(&config, &server, NULL), SL_OK);
    assert_int_equal(sl_client_connect(sl_rpc_server_address(server), NULL, &client, NULL), SL_OK);
    *state = client;
    return 0;
}

static int teardown(void **state) {
    struct sl_client *client = *state;
    sl_client_close(&client);
    sl_rpc_server_stop(&server, 0);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_import_that_is_stopped_says_what_was_kept, setup, teardown),
    };
    sl_rpc_init();
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return n_failed;
}
