#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A foreign gRPC client against net/rpc/: health, reflection (v1 and v1alpha) and a bidirectional method.

usage: reflection_test.py ECHO_SERVER PROTOC PROTO_DIR OUT_DIR
"""
import importlib
import os
import subprocess
import sys
import threading
import time
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools"))
import script  # noqa: E402
script.needs_arguments(4, "ECHO_SERVER PROTOC PROTO_DIR OUT_DIR")
script.needs("grpc", "google.protobuf")

server_program, protoc, proto_dir, out_dir = sys.argv[1:5]
os.makedirs(out_dir, exist_ok=True)
# Into one folder without packages: grpc/ would otherwise hide the grpc module.
flat = {
    "grpc/health/v1/health.proto": "health",
    "grpc/reflection/v1/reflection.proto": "reflection_v1",
    "sluice/v1/inference.proto": "inference",
}
for source, name in flat.items():
    with open(os.path.join(proto_dir, source), encoding="utf-8") as f:
        text = f.read()
    with open(os.path.join(out_dir, name + ".proto"), "w", encoding="utf-8") as f:
        f.write(text)
    subprocess.run([protoc, "-I", out_dir, "--python_out", out_dir, name + ".proto"], check=True)
sys.path.insert(0, out_dir)
import grpc  # noqa: E402
from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: E402

health_pb, reflection_pb, inference_pb = (importlib.import_module(name + "_pb2") for name in flat.values())
SERVING, NOT_SERVING = 1, 2


def setUpModule():
    global process, channel
    process = subprocess.Popen([server_program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    address = process.stdout.readline().decode().strip()
    channel = grpc.insecure_channel(address)


def tearDownModule():
    channel.close()
    process.stdin.close()
    process.stdout.close()
    if process.wait(timeout=15) != 0:
        raise AssertionError(f"the server ended with {process.returncode}")


def method(kind, path, request, reply):
    return getattr(channel, kind)(path, request_serializer=request.SerializeToString,
                                  response_deserializer=reply.FromString)


def check(service):
    call = method("unary_unary", "/grpc.health.v1.Health/Check", health_pb.HealthCheckRequest,
                  health_pb.HealthCheckResponse)
    return call(health_pb.HealthCheckRequest(service=service), timeout=5).status


class Health(unittest.TestCase):
    def test_check(self):
        self.assertEqual(check(""), SERVING)
        self.assertEqual(check("test.Echo"), SERVING)
        with self.assertRaises(grpc.RpcError) as caught:
            check("nobody")
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        self.assertIn("nobody", caught.exception.details())

    def test_watch(self):
        call = method("unary_stream", "/grpc.health.v1.Health/Watch", health_pb.HealthCheckRequest,
                      health_pb.HealthCheckResponse)
        states = call(health_pb.HealthCheckRequest(service="test.Echo"), timeout=5)
        self.assertEqual(next(states).status, SERVING)
        for byte, expected in ((b"s", NOT_SERVING), (b"r", SERVING)):
            process.stdin.write(byte)
            process.stdin.flush()
            self.assertEqual(next(states).status, expected)
        states.cancel()


class Reflection(unittest.TestCase):
    def ask(self, version, *questions):
        call = method("stream_stream", f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                      reflection_pb.ServerReflectionRequest, reflection_pb.ServerReflectionResponse)
        requests = [reflection_pb.ServerReflectionRequest(host="h", **q) for q in questions]
        answers = list(call(iter(requests), timeout=5))
        self.assertEqual([a.original_request for a in answers], requests)
        return answers

    def both(self, *questions):
        answers = [self.ask(version, *questions) for version in ("v1", "v1alpha")]
        self.assertEqual(answers[0], answers[1])
        return answers[0]

    def test_list_services(self):
        (answer,) = self.both({"list_services": "*"})
        self.assertEqual({s.name for s in answer.list_services_response.service},
                         {"test.Echo", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                          "grpc.reflection.v1alpha.ServerReflection"})

    def test_types_can_be_built_from_one_answer(self):
        for symbol in ("sluice.v1.Prefill", "sluice.v1.Prefill.Run", "sluice.v1.PrefillRequest"):
            (answer,) = self.both({"file_containing_symbol": symbol})
            files = [descriptor_pb2.FileDescriptorProto.FromString(b)
                     for b in answer.file_descriptor_response.file_descriptor_proto]
            self.assertEqual([f.name for f in files], ["sluice/v1/worker.proto", "sluice/v1/inference.proto"])
            pool = descriptor_pool.DescriptorPool()
            for file in reversed(files):
                pool.Add(file)
            run = pool.FindServiceByName("sluice.v1.Prefill").FindMethodByName("Run")
            self.assertEqual(run.output_type.full_name, "sluice.v1.PrefillEvent")

    def test_file_by_filename_and_errors_within_one_stream(self):
        found, no_file, no_symbol, nothing, extension, numbers = self.both(
            {"file_by_filename": "sluice/v1/cluster.proto"}, {"file_by_filename": "no.proto"},
            {"file_containing_symbol": "sluice.v1.Nothing"}, {},
            {"file_containing_extension": {"containing_type": "sluice.v1.Job", "extension_number": 100}},
            {"all_extension_numbers_of_type": "sluice.v1.Job"})
        self.assertEqual(len(found.file_descriptor_response.file_descriptor_proto), 1)
        for error, code, word in ((no_file, 5, "no.proto"), (no_symbol, 5, "sluice.v1.Nothing"), (nothing, 3, ""),
                                  (extension, 5, "sluice.v1.Job")):
            self.assertEqual(error.error_response.error_code, code)
            self.assertIn(word, error.error_response.error_message)
        self.assertEqual(numbers.all_extension_numbers_response.base_type_name, "sluice.v1.Job")

    def test_undecodable_question(self):
        call = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        with self.assertRaises(grpc.RpcError) as caught:
            list(call(iter([b"\xff\xff\xff"]), timeout=5))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)


class Calls(unittest.TestCase):
    def test_chat_is_a_conversation(self):
        call = method("stream_stream", "/test.Echo/Chat", inference_pb.JobRequest, inference_pb.Job)
        heard = []

        condition = threading.Condition()

        def talk():  # each question waits for the answer before it: nothing may be held back
            for i in range(200):
                with condition:
                    condition.wait_for(lambda n=i: len(heard) >= n, 5)
                yield inference_pb.JobRequest(job_id=f"job-{i}")

        for job in call(talk(), timeout=20):
            with condition:
                heard.append(job.job_id)
                condition.notify()
        self.assertEqual(heard, [f"job-{i}" for i in range(200)])

    def test_chat_refuses_a_message_over_the_limit(self):
        call = method("stream_stream", "/test.Echo/Chat", inference_pb.JobRequest, inference_pb.Job)
        with self.assertRaises(grpc.RpcError) as caught:
            list(call(iter([inference_pb.JobRequest(job_id="x" * (1 << 20))]), timeout=5))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)

    def test_idle_connection_is_kept(self):
        self.assertEqual(check(""), SERVING)
        time.sleep(8)  # Python polls only during calls, so it answers no keepalive pings meanwhile
        self.assertEqual(check(""), SERVING)

    def test_unknown_method(self):
        with self.assertRaises(grpc.RpcError) as caught:
            channel.unary_unary("/test.Echo/Nothing")(b"", timeout=5)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
