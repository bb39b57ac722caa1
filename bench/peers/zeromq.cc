// ZeroMQ alone: round trips of REQ and REP, and how many small messages PUSH gets to PULL, one way, unanswered.
//   zeromq REP PULL CORE CORE      endpoints as tcp://127.0.0.1:5555, and the cores of the side that asks and of the one that answers
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <cstdlib>

#include "measure.h"

namespace {

const int kPushes = 1'000'000;

/// A return value of ZeroMQ; one that is an error ends the program.
int Ok(int value) {
  if (value >= 0) return value;
  std::fprintf(stderr, "zeromq: %s\n", zmq_strerror(zmq_errno()));
  std::exit(1);
}

void Pin(const char* core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(std::atoi(core), &cores);
  if (sched_setaffinity(0, sizeof cores, &cores) != 0) std::fprintf(stderr, "zeromq: not pinned to core %s\n", core);
}

/// Receives `bytes` into `message`; anything else is an error.
void Receive(void* socket, std::vector<char>& message, size_t bytes) {
  if (static_cast<size_t>(Ok(zmq_recv(socket, message.data(), message.size(), 0))) == bytes) return;
  std::fprintf(stderr, "zeromq: a message is not of %zu bytes\n", bytes);
  std::exit(1);
}

/// The other process: answers with the number that the request carries, then takes what is pushed.
int Answer(void* context, const char* answers, const char* pushes) {
  void* rep = zmq_socket(context, ZMQ_REP);
  void* pull = zmq_socket(context, ZMQ_PULL);
  Ok(zmq_bind(rep, answers));
  Ok(zmq_bind(pull, pushes));
  std::vector<char> in(kSizes.back()), out(kSizes.back());
  for (size_t bytes : kSizes) {
    for (Op op : {kPush, kPull}) {
      const size_t there = op == kPush ? bytes : 8, back = op == kPush ? 8 : bytes;
      for (int i = 0; i < Answers(bytes); ++i) {
        Receive(rep, in, there);
        Stamp(out.data(), back, Stamped(in.data(), there));
        Ok(zmq_send(rep, out.data(), back, 0));
      }
    }
  }
  long wrong = 0;
  double began = 0;
  for (int i = 0; i < kPushes; ++i) {
    Receive(pull, in, kRateBytes);
    if (i == kPushes / kWarmUp) began = Micros();
    wrong += Stamped(in.data(), kRateBytes) != static_cast<uint64_t>(i);
  }
  Print("rate", "push", kRateBytes, 1, (kPushes - kPushes / kWarmUp) / (Micros() - began), wrong);
  zmq_close(rep);
  zmq_close(pull);
  return 0;
}

void Ask(void* context, const char* answers, const char* pushes) {
  void* req = zmq_socket(context, ZMQ_REQ);
  void* push = zmq_socket(context, ZMQ_PUSH);
  Ok(zmq_connect(req, answers));
  Ok(zmq_connect(push, pushes));
  std::vector<char> in(kSizes.back()), out(kSizes.back());
  for (size_t bytes : kSizes) {
    for (Op op : {kPush, kPull}) {
      const size_t there = op == kPush ? bytes : 8, back = op == kPush ? 8 : bytes;
      auto before = [&](uint64_t number) { Stamp(out.data(), there, number); };
      auto request = [&](uint64_t) {
        Ok(zmq_send(req, out.data(), there, 0));
        Receive(req, in, back);
      };
      auto after = [&](uint64_t number) { return Stamped(in.data(), back) == number; };
      Latency(op, bytes, 1, before, request, after);
    }
  }
  for (int i = 0; i < kPushes; ++i) {
    Stamp(out.data(), kRateBytes, i);
    Ok(zmq_send(push, out.data(), kRateBytes, 0));
  }
  zmq_close(req);
  zmq_close(push);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fprintf(stderr, "usage: zeromq REP PULL CORE CORE\n");
    return 2;
  }
  const pid_t child = fork();
  Pin(arguments[child == 0 ? 4 : 3]);
  void* context = zmq_ctx_new();
  int status = 0;
  if (child == 0) {
    status = Answer(context, arguments[1], arguments[2]);
  } else {
    Ask(context, arguments[1], arguments[2]);
  }
  zmq_ctx_term(context);
  if (child > 0) waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
