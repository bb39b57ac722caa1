// gRPC alone: unary calls of raw bytes over its generic interface, with no messages of Protocol Buffers to encode.
//   grpc ADDRESS CORE CORE      as 127.0.0.1:5555, and the cores of the side that asks and of the one that answers
//
// The server is one thread with one queue, which is what gRPC does fastest. It keeps what is pushed in a row of its own, by one
// copy, and answers a pull from there without one. The worker copies what it pulled, or sends what it pushes without a copy.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "measure.h"

namespace {

using Row = std::vector<char>;

void Pin(const char* core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(std::atoi(core), &cores);
  if (sched_setaffinity(0, sizeof cores, &cores) != 0) std::fprintf(stderr, "grpc: not pinned to core %s\n", core);
}

[[noreturn]] void Fail(const std::string& reason) {
  std::fprintf(stderr, "grpc: %s\n", reason.c_str());
  std::exit(1);
}

/// Bytes of memory that stays as it is until the call is over, without a copy.
grpc::ByteBuffer Lent(const char* bytes, size_t count) {
  const grpc::Slice slice(bytes, count, grpc::Slice::STATIC_SLICE);
  return grpc::ByteBuffer(&slice, 1);
}

/// Copies what came into a row; anything but `bytes` of it is an error.
void Copy(const grpc::ByteBuffer& from, Row& into, size_t bytes) {
  std::vector<grpc::Slice> slices;
  if (from.Length() != bytes || !from.Dump(&slices).ok()) Fail("a message is not of " + std::to_string(bytes) + " bytes");
  char* at = into.data();
  for (const grpc::Slice& slice : slices) at = std::copy(slice.begin(), slice.end(), at);
}

/// The method of a request, which says what it is and of how many bytes.
std::string Method(Op op, size_t bytes) { return "/" + std::string(Name(op)) + "/" + std::to_string(bytes); }

// ---- the server ----------------------------------------------------------------------------------------------------------------

/// One call: waits to begin, reads, answers, ends.
struct Served {
  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter stream{&context};
  grpc::ByteBuffer request;
  Row row = Row(8);
  enum { kBegins, kReads, kAnswers } step = kBegins;
};

/// Answers with the number that the request carries, until it is killed.
void Answer(const char* address, const char* core) {
  Pin(core);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterAsyncGenericService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  auto queue = builder.AddCompletionQueue();
  auto server = builder.BuildAndStart();
  if (!server) Fail(std::string("cannot listen at ") + address);
  auto expect = [&] {
    auto* call = new Served;
    service.RequestCall(&call->context, &call->stream, queue.get(), queue.get(), call);
  };
  for (size_t i = 0; i < 2 * kRateWindow; ++i) expect();
  std::vector<Row> spare;  // rows of ended calls, so that none is allocated for each
  void* tag;
  for (bool ok; queue->Next(&tag, &ok);) {
    auto* call = static_cast<Served*>(tag);
    if (!ok) {
      delete call;
      continue;
    }
    switch (call->step) {
      case Served::kBegins:
        expect();
        call->step = Served::kReads;
        call->stream.Read(&call->request, call);
        break;
      case Served::kReads: {
        const std::string& method = call->context.method();
        const bool pushes = method.rfind("/push/", 0) == 0;
        const size_t bytes = std::strtoull(method.c_str() + 6, nullptr, 10);
        if (bytes < 8 || bytes > kSizes.back()) Fail("a request is of " + method);
        if (!spare.empty()) {
          call->row.swap(spare.back());
          spare.pop_back();
        }
        if (call->row.size() < bytes) call->row.resize(bytes);
        Copy(call->request, call->row, pushes ? bytes : 8);
        const uint64_t number = Stamped(call->row.data(), pushes ? bytes : 8);
        if (!pushes) Stamp(call->row.data(), bytes, number);
        call->request = pushes ? grpc::ByteBuffer() : Lent(call->row.data(), bytes);
        if (pushes) {
          char answer[8];
          Stamp(answer, 8, number);
          const grpc::Slice slice(answer, 8);
          call->request = grpc::ByteBuffer(&slice, 1);
        }
        call->step = Served::kAnswers;
        call->stream.WriteAndFinish(call->request, grpc::WriteOptions(), grpc::Status::OK, call);
        break;
      }
      case Served::kAnswers:
        spare.push_back(std::move(call->row));
        delete call;
        break;
    }
  }
}

// ---- the worker ----------------------------------------------------------------------------------------------------------------

/// One call in flight.
struct Asked {
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  grpc::ByteBuffer request, answer;
  grpc::Status status;
  Row out = Row(kSizes.back()), in = Row(kSizes.back());
  uint64_t number = 0;
};

class Worker {
 public:
  explicit Worker(const char* address) : stub_(nullptr) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20))) Fail("no server");
    stub_ = grpc::GenericStub(channel);
  }

  /// Posts a request; `call` is its own until `Wait` returns it.
  void Post(Asked& call, Op op, const std::string& method, size_t bytes, uint64_t number) {
    const size_t there = op == kPush ? bytes : 8;
    call.number = number;
    Stamp(call.out.data(), there, number);
    call.request = Lent(call.out.data(), there);
    call.context = std::make_unique<grpc::ClientContext>();
    call.reader = stub_.PrepareUnaryCall(call.context.get(), method, call.request, &queue_);
    call.reader->StartCall();
    call.reader->Finish(&call.answer, &call.status, &call);
  }

  /// The next request that is answered, what came in its memory.
  Asked& Wait(Op op, size_t bytes) {
    void* tag;
    bool ok;
    if (!queue_.Next(&tag, &ok) || !ok) Fail("no answer");
    Asked& call = *static_cast<Asked*>(tag);
    if (!call.status.ok()) Fail(call.status.error_message());
    Copy(call.answer, call.in, op == kPush ? 8 : bytes);
    return call;
  }

  /// `times` requests, a window of them in flight; prints `each` of them a microsecond.
  void Stream(const char* measure, Op op, size_t bytes, size_t window, int times, double each) {
    const std::string method = Method(op, bytes);
    const size_t back = op == kPush ? 8 : bytes;
    std::vector<Asked> calls(window);
    long wrong = 0;
    int posted = 0;
    auto post = [&](Asked& call) { Post(call, op, method, bytes, ++posted); };
    for (Asked& call : calls) post(call);
    const int warm = times / kWarmUp;
    double began = 0;
    for (int done = 0; done < warm + times; ++done) {
      if (done == warm) began = Micros();
      Asked& call = Wait(op, bytes);
      wrong += Stamped(call.in.data(), back) != call.number;
      if (posted < warm + times) post(call);
    }
    Print(measure, Name(op), bytes, 1, times * each / (Micros() - began), wrong);
  }

 private:
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
};

void Ask(const char* address) {
  Worker worker(address);
  Asked call;
  for (size_t bytes : kSizes) {
    for (Op op : {kPush, kPull}) {
      const std::string method = Method(op, bytes);
      const size_t back = op == kPush ? 8 : bytes;
      auto request = [&](uint64_t number) {
        worker.Post(call, op, method, bytes, number);
        worker.Wait(op, bytes);
      };
      auto after = [&](uint64_t number) { return Stamped(call.in.data(), back) == number; };
      Latency(op, bytes, 1, [](uint64_t) {}, request, after);
    }
  }
  for (Op op : {kPush, kPull}) {
    for (size_t bytes : kStreamSizes) worker.Stream("bandwidth", op, bytes, kWindow, 4 * Times(bytes), bytes / 1e3);
    worker.Stream("rate", op, kRateBytes, kRateWindow, kRateCount, 1);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::fprintf(stderr, "usage: grpc ADDRESS CORE CORE\n");
    return 2;
  }
  const pid_t child = fork();  // before gRPC has threads
  if (child == 0) {
    Answer(arguments[1], arguments[3]);
    return 0;
  }
  Pin(arguments[2]);
  Ask(arguments[1]);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::_Exit(0);
}
