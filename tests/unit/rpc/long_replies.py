#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""long_replies.py FILE [FOLDER WHO]: a gRPC server whose reply to every call with a job id of "long" is a byte longer than a reply may be; others get
back their request. Writes its address to FILE, and ends with its standard input."""
import concurrent.futures
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools"))
import script  # noqa: E402

script.needs("grpc")
import grpc  # noqa: E402

TOO_LONG = b"\x0a\x04long"  # the request


class Handler(grpc.GenericRpcHandler):
    def service(self, _details):
        return grpc.unary_unary_rpc_method_handler(lambda request, _context: bytes((64 << 20) + 1) if request == TOO_LONG else request)


def main():
    file, *tls = sys.argv[1:]
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=[Handler()], options=[("grpc.max_send_message_length", -1)])
    if tls:
        key, pem, ca = (open(os.path.join(tls[0], name), "rb").read() for name in (f"{tls[1]}.key", f"{tls[1]}.pem", "ca.pem"))
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, pem)], ca, True))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open(file + ".part", "w", encoding="utf-8") as out:
        out.write(f"127.0.0.1:{port}\n")
    os.rename(file + ".part", file)
    sys.stdin.read()
    server.stop(None).wait()


if __name__ == "__main__":
    script.needs_arguments(1, "FILE [FOLDER WHO]")
    main()
