// MPI between two ranks: round trips of send and receive into place, and a stream of windows of them, each answered once.
// Which transport is mpirun's choice (--mca btl).
#include <mpi.h>

#include "measure.h"

namespace {

const int kOther[] = {1, 0};
int rank;

void Send(const std::vector<char>& message, size_t bytes) {
  MPI_Send(message.data(), static_cast<int>(bytes), MPI_BYTE, kOther[rank], 0, MPI_COMM_WORLD);
}

void Receive(std::vector<char>& message, size_t bytes) {
  MPI_Recv(message.data(), static_cast<int>(bytes), MPI_BYTE, kOther[rank], 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

void MeasureLatency(Op op, size_t bytes) {
  const size_t there = op == kPush ? bytes : 8, back = op == kPush ? 8 : bytes;
  std::vector<char> in(bytes), out(bytes);
  if (rank == 1) {
    for (int i = 0; i < Answers(bytes); ++i) {
      Receive(in, there);
      Stamp(out.data(), back, Stamped(in.data(), there));
      Send(out, back);
    }
    return;
  }
  auto before = [&](uint64_t number) { Stamp(out.data(), there, number); };
  auto request = [&](uint64_t) {
    Send(out, there);
    Receive(in, back);
  };
  auto after = [&](uint64_t number) { return Stamped(in.data(), back) == number; };
  Latency(op, bytes, 1, before, request, after);
}

/// Windows from rank 0 to rank 1 (push) or back (pull). Whoever receives says when its window is full.
void MeasureStream(Op op, size_t bytes) {
  const bool sends = (op == kPush) == (rank == 0);
  std::vector<std::vector<char>> window(kWindow, std::vector<char>(bytes));
  std::vector<char> full(8);
  std::vector<MPI_Request> requests(kWindow);
  const int times = 4 * Times(bytes) / kWindow;
  double began = 0;
  long wrong = 0;
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = -times / kWarmUp - 1; i < times; ++i) {
    if (i == 0) began = Micros();
    for (size_t slot = 0; slot < kWindow; ++slot) {
      char* message = window[slot].data();
      if (sends) Stamp(message, bytes, times + i);
      auto post = [&](auto call) { call(message, static_cast<int>(bytes), MPI_BYTE, kOther[rank], 0, MPI_COMM_WORLD, &requests[slot]); };
      sends ? post(MPI_Isend) : post(MPI_Irecv);
    }
    MPI_Waitall(kWindow, requests.data(), MPI_STATUSES_IGNORE);
    for (size_t slot = 0; slot < kWindow && !sends; ++slot) {
      wrong += Stamped(window[slot].data(), bytes) != static_cast<uint64_t>(times + i);
    }
    sends ? Receive(full, 8) : Send(full, 8);
  }
  const double took = Micros() - began;
  long all_wrong = 0;
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) Print("bandwidth", Name(op), bytes, 1, times * kWindow * (bytes / 1e3) / took, all_wrong);
}

}  // namespace

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (Op op : {kPush, kPull}) {
    for (size_t bytes : kSizes) MeasureLatency(op, bytes);
    for (size_t bytes : kStreamSizes) MeasureStream(op, bytes);
  }
  MPI_Finalize();
  return 0;
}
