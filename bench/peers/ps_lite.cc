// ps-lite's push and pull, by its public API: a worker that waits for each request, or keeps a window of them; a server that
// stores what is pushed and answers with it. Both sides reuse their buffers and pass them without a copy (ZPush, ZPull).
// The role comes from DMLC_ROLE, as in every program of ps-lite. Arguments name what is measured: small, large, sparse, bandwidth,
// rate; without any it is all.
#include <string_view>
#include <unordered_map>

#include "measure.h"
#include "ps/ps.h"

namespace {

using Floats = ps::SArray<float>;
using Keys = ps::SArray<ps::Key>;

/// What the server does with values; travels as the request's command.
enum Store { kArray, kMap };

/// kArray: the values of a request are one array, found by its first key. kMap: every key is looked up.
void Answer(const ps::KVMeta& meta, const ps::KVPairs<float>& request, ps::KVServer<float>* server) {
  static std::unordered_map<ps::Key, Floats> arrays;
  static std::unordered_map<ps::Key, float> map;
  ps::KVPairs<float> answer;
  if (meta.push) {
    if (meta.cmd == kMap) {
      for (size_t i = 0; i < request.keys.size(); ++i) map[request.keys[i]] = request.vals[i];
    } else {
      Floats& array = arrays[request.keys[0]];
      if (array.size() != request.vals.size()) array.resize(request.vals.size());
      std::memcpy(array.data(), request.vals.data(), request.vals.size() * sizeof(float));
    }
  } else {
    answer.keys = request.keys;
    if (meta.cmd == kMap) {
      answer.vals.resize(request.keys.size());
      for (size_t i = 0; i < request.keys.size(); ++i) answer.vals[i] = map[request.keys[i]];
    } else {
      answer.vals = arrays[request.keys[0]];
    }
  }
  server->Response(meta, answer);
}

/// The stretch of the key range in which one key lies.
constexpr ps::Key kKeyGap = 1 << 14;

/// The key at a place in the sorted list: anywhere in its stretch, and where `scattered` in bench/src/requests.rs has it.
ps::Key Scattered(ps::Key place) {
  const ps::Key random = ((place + 1) * 0x9e3779b97f4a7c15u) >> 32;
  return place * kKeyGap + (place == 0 ? 0 : random % kKeyGap);
}

/// Requests of one shape, `window` of them at once, each with memory of its own. All are for the same keys.
class Requests {
 public:
  Requests(ps::KVWorker<float>* worker, size_t keys, size_t bytes, size_t window, Store store)
      : worker_(worker), store_(store), bytes_(bytes), keys_(keys), in_flight_(window) {
    static ps::Key first = 0;  // shapes share no keys
    for (size_t i = 0; i < keys; ++i) keys_[i] = first + Scattered(i);
    first += keys * kKeyGap;
    for (size_t i = 0; i < window; ++i) values_.emplace_back(bytes / sizeof(float), 0.5f);
    Write(1);
    for (size_t i = 0; i < window; ++i) Wait(Post(kPush, i));
  }

  /// Makes all values those of request `number`.
  void Write(uint64_t number) {
    for (auto& values : values_) Stamp(reinterpret_cast<char*>(values.data()), bytes_, number);
  }

  int Post(Op op, size_t slot) {
    return op == kPush ? worker_->ZPush(keys_, values_[slot], {}, store_) : worker_->ZPull(keys_, &values_[slot], nullptr, store_);
  }

  void Wait(int timestamp) { worker_->Wait(timestamp); }

  bool Right(size_t slot, uint64_t number) {
    return Stamped(reinterpret_cast<const char*>(values_[slot].data()), bytes_) == number;
  }

  /// What the server has is pulled into memory spoiled before.
  bool Held(uint64_t number) {
    Write(UINT64_MAX);
    Wait(Post(kPull, 0));
    return Right(0, number);
  }

  /// The sum of all values' bits, around the end: what reading them takes. As in bench/src/pattern.rs.
  uint32_t Sum(size_t slot) const {
    const char* values = reinterpret_cast<const char*>(values_[slot].data());
    uint32_t sum = 0;
    for (size_t at = 0; at < bytes_; at += 4) {
      uint32_t bits;
      std::memcpy(&bits, values + at, 4);
      sum += bits;
    }
    return sum;
  }

  /// Microseconds that `times` requests take, a window of them in flight, with `finish(slot)` after each.
  template <typename Finish>
  double Stream(Op op, int times, Finish finish) {
    const double began = Micros();
    for (int i = 0; i < times; ++i) {
      const size_t slot = i % in_flight_.size();
      if (i >= static_cast<int>(in_flight_.size())) Wait(in_flight_[slot]), finish(slot);
      in_flight_[slot] = Post(op, slot);
    }
    for (int i = std::max<int>(0, times - in_flight_.size()); i < times; ++i) {
      const size_t slot = i % in_flight_.size();
      Wait(in_flight_[slot]), finish(slot);
    }
    return Micros() - began;
  }

 private:
  ps::KVWorker<float>* worker_;
  Store store_;
  size_t bytes_;
  Keys keys_;
  std::vector<Floats> values_;
  std::vector<int> in_flight_;
};

void MeasureLatency(ps::KVWorker<float>* worker, size_t keys, size_t bytes, Store store) {
  for (Op op : {kPush, kPull}) {
    Requests requests(worker, keys, bytes, 1, store);
    uint64_t last = 1;
    auto before = [&](uint64_t number) { requests.Write(op == kPush ? last = number : UINT64_MAX); };
    auto request = [&](uint64_t) { requests.Wait(requests.Post(op, 0)); };
    auto after = [&](uint64_t) { return op == kPush || requests.Right(0, 1); };
    Latency(op, bytes, keys, before, request, after, store == kMap ? "latency-map" : "latency");
    if (!requests.Held(last)) Print("held", Name(op), bytes, keys, 0, 1);
  }
}

/// With `reads` every value is read as soon as its request is done.
void MeasureStream(ps::KVWorker<float>* worker, const char* measure, size_t bytes, size_t window, int times, double unit,
                   const std::vector<Op>& ops, bool reads = false) {
  for (Op op : ops) {
    Requests requests(worker, 1, bytes, window, kArray);
    const uint32_t expected = requests.Sum(0);
    long wrong = 0;
    auto finish = [&](size_t slot) { wrong += reads && requests.Sum(slot) != expected; };
    requests.Stream(op, times / kWarmUp, finish);
    if (op == kPull) requests.Write(UINT64_MAX);
    const double took = requests.Stream(op, times, finish);
    for (size_t slot = 0; slot < window; ++slot) wrong += !requests.Right(slot, 1);
    wrong += !requests.Held(1);
    Print(measure, Name(op), bytes, 1, times * unit / took, wrong);
  }
}

void Measure(const std::vector<std::string_view>& names) {
  const auto named = [&](std::string_view name) {
    return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
  };
  ps::KVWorker<float> worker(0, 0);
  ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup);
  for (size_t bytes : kSizes) {
    if (named(bytes <= kSmall ? "small" : "large")) MeasureLatency(&worker, 1, bytes, kArray);
  }
  for (size_t keys : kSparse) {
    if (!named("sparse")) break;
    for (Store store : {kArray, kMap}) MeasureLatency(&worker, keys, keys * sizeof(float), store);
  }
  for (size_t bytes : kStreamSizes) {
    if (!named("bandwidth")) break;
    const int times = 4 * Times(bytes);
    MeasureStream(&worker, "bandwidth", bytes, kWindow, times, bytes / 1e3, {kPush, kPull});
    MeasureStream(&worker, "bandwidth-read", bytes, kWindow, times, bytes / 1e3, {kPull}, true);
  }
  if (named("rate")) MeasureStream(&worker, "rate", kRateBytes, kRateWindow, kRateCount, 1, {kPush, kPull});
}

}  // namespace

int main(int count, char** arguments) {
  ps::Start(0);
  ps::KVServer<float>* server = nullptr;
  if (ps::IsServer()) {
    server = new ps::KVServer<float>(0);
    server->set_request_handle(Answer);
    // Start's barrier does not cover the handle; a request that came before it would end the server.
    ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup);
  }
  if (ps::IsWorker()) Measure({arguments + 1, arguments + count});
  ps::Finalize(0, true);
  delete server;
  return 0;
}
