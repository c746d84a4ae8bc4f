// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/registration.h"

#include "core/base/strings.h"
#include "core/device/stream.h"

namespace shard::nccl {

namespace {

constexpr std::string_view kWhat = "register memory with NCCL";

// The pieces in which GPUs give memory that other GPUs reach.
constexpr size_t kPieceBytes = size_t{2} << 20;

// Seconds for new memory to be cleared.
constexpr double kClearSeconds = 60;

RankComms::Check Until(const Deadline& deadline) {
  return [deadline]() -> Status {
    if (!deadline.Expired()) return Status();
    return DeadlineExceeded(
        "NCCL did not register memory within ", deadline.seconds(),
        " s, as another call is in progress; look at NCCL_DEBUG=INFO");
  };
}

// Frees memory that no work uses any more.
class Piece {
 public:
  Piece(std::shared_ptr<RankComms> comms, std::byte* data)
      : comms_(std::move(comms)), data_(data) {}
  ~Piece() { comms_->Free(data_); }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

 private:
  const std::shared_ptr<RankComms> comms_;
  std::byte* const data_;
};

// Tries what Allocate does. Returns why this rank cannot.
Status Try(RankComms* comms, const Deadline& deadline) {
  const NcclLibrary& library = comms->library();
  const std::string version = StrCat("NCCL ", VersionText(library.version));
  if (!library.api.HasRegistration()) {
    return NotFound(library.WhyNoRegistration());
  }
  const auto made = comms->Allocate(kWhat, kPieceBytes, Until(deadline));
  if (!made.ok()) return NotFound(made.status().message());
  comms->Free(made->data);
  if (!made->is_registered) {
    return NotFound(version,
                    " registers nothing; unset NCCL_LOCAL_REGISTER and "
                    "NCCL_P2P_USE_CUDA_MEMCPY");
  }
  if (made->taken_bytes > kPieceBytes) {
    return NotFound(version, " allocates memory in pieces of ",
                    FormatBytes(made->taken_bytes), "; use a later version");
  }
  return Status();
}

}  // namespace

StatusOr<Registration> Registration::Agree(Communicator* control,
                                           std::shared_ptr<RankComms> comms,
                                           const Deadline& deadline) {
  const Status agreed =
      AgreeOnStatus(control, kWhat, Try(comms.get(), deadline), deadline);
  const bool is_reason = agreed.code() == StatusCode::kNotFound;
  if (!agreed.ok() && !is_reason) return agreed;
  return Registration(std::move(comms), is_reason ? agreed.message() : "");
}

StatusOr<DeviceMemory> Registration::Allocate(Device* device, size_t bytes,
                                              std::string_view what,
                                              const Deadline& deadline) const {
  if (!why_not_.empty() || bytes == 0) return device->Allocate(bytes, what);
  auto made = comms_->Allocate(what, bytes, Until(deadline));
  if (made.status().code() == StatusCode::kResourceExhausted) {
    // The device's pool may keep memory that was freed.
    SHARD_RETURN_IF_ERROR(device->FindMemoryRoom(deadline).status());
    made = comms_->Allocate(what, bytes, Until(deadline));
  }
  SHARD_RETURN_IF_ERROR(made.status());
  DeviceMemory memory(made->data, bytes,
                      std::make_shared<Piece>(comms_, made->data));
  SHARD_ASSIGN_OR_RETURN(const auto stream,
                         device->CreateStream(StreamKind::kCommunication));
  stream->FillZeros(memory.data(), bytes);
  const Status cleared =
      stream->Synchronize(Deadline::After(kClearSeconds)).WithContext(what);
  if (cleared.ok()) return memory;
  // The memory is freed next, which work may still use.
  stream->Settle(Deadline::After(kClearSeconds));
  return cleared;
}

}  // namespace shard::nccl
