// What the programs that measure peers share: which requests, how often, what marks them, and how a figure is printed.
// One peer's calls are in one .cc file each; compare.py starts them, beside Caravan, and reads their lines.
//
// A line: measure, op, bytes, keys, figure, wrong. Latency is the median round trip in µs with one request in flight, bandwidth
// is in GB/s, rate in million messages a second. A push takes the bytes there and 8 bytes back, a pull 8 bytes there and the bytes
// back. `wrong` counts requests whose answer did not carry the number it had to.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

const std::vector<size_t> kSizes = {8, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 4 << 20};
const size_t kSmall = 4 << 10;
const std::vector<size_t> kStreamSizes = {1 << 20, 4 << 20};
const size_t kWindow = 16;         // requests in flight of a stream
const std::vector<size_t> kSparse = {1'000, 100'000};  // keys of a request with a float for each
const size_t kRateBytes = 64;      // of a small message
const size_t kRateWindow = 64;     // small messages in flight
const int kRateCount = 40'000;     // small messages that are answered
const int kWarmUp = 10;            // one request of so many is made before the clock runs
enum Op { kPush, kPull };

inline const char* Name(Op op) { return op == kPush ? "push" : "pull"; }

/// Requests of a size: some tenths of a second of the slower peers.
inline int Times(size_t bytes) {
  return bytes <= kSmall ? 2000 : bytes <= (64 << 10) ? 1000 : bytes <= (1 << 20) ? 150 : 50;
}

inline double Micros() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Writes a request's number over both ends of its message, of 8 bytes or more.
inline void Stamp(char* message, size_t bytes, uint64_t number) {
  std::memcpy(message, &number, 8);
  std::memcpy(message + bytes - 8, &number, 8);
}

/// The number both ends carry; the largest one where they differ.
inline uint64_t Stamped(const char* message, size_t bytes) {
  uint64_t first, last;
  std::memcpy(&first, message, 8);
  std::memcpy(&last, message + bytes - 8, 8);
  return first == last ? first : UINT64_MAX;
}

inline void Print(const char* measure, const char* op, size_t bytes, size_t keys, double figure, long wrong) {
  std::printf("%s %s %zu %zu %.6f %ld\n", measure, op, bytes, keys, figure, wrong);
  std::fflush(stdout);
}

/// Times `request(number)` again and again, each alone. What `before(number)` writes, and `after(number)` looks at to say whether
/// the answer was right, is not in the figure.
template <typename Before, typename Request, typename After>
void Latency(Op op, size_t bytes, size_t keys, Before before, Request request, After after,
             const char* measure = "latency") {
  const int times = Times(bytes);
  std::vector<double> took;
  long wrong = 0;
  for (int i = -times / kWarmUp; i < times; ++i) {
    const uint64_t number = times + i;
    before(number);
    const double began = Micros();
    request(number);
    if (i >= 0) took.push_back(Micros() - began);
    if (!after(number)) ++wrong;
  }
  std::nth_element(took.begin(), took.begin() + times / 2, took.end());
  Print(measure, Name(op), bytes, keys, took[times / 2], wrong);
}

/// Requests the other side of a latency has to answer.
inline int Answers(size_t bytes) { return Times(bytes) + Times(bytes) / kWarmUp; }
