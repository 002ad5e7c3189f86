#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""foreign_client.py ADDRESS FOLDER WHO: a client that is not ours calls test.Echo/Get with a certificate that must be refused."""
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools"))
import script  # noqa: E402
script.needs_arguments(3, "ADDRESS FOLDER WHO")
script.needs("grpc")
import grpc  # noqa: E402

address, folder, who = sys.argv[1:]


def content(name):
    with open(f"{folder}/{name}", "rb") as file:
        return file.read()


credentials = grpc.ssl_channel_credentials(content("ca.pem"), content(f"{who}.key"), content(f"{who}.pem"))
with grpc.secure_channel(address, credentials, options=[("grpc.enable_http_proxy", 0)]) as channel:
    try:
        channel.unary_unary("/test.Echo/Get")(b"", timeout=10)
    except grpc.RpcError as error:
        print(error.code(), error.details())
        sys.exit(error.code() != grpc.StatusCode.PERMISSION_DENIED or "elsewhere" not in error.details())
sys.exit("it was answered")
