// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/cublas.h"

#include <unistd.h>

#include <initializer_list>

#include "core/base/strings.h"

namespace shard::cuda {

namespace {

constexpr std::initializer_list<const char*> kNames = {"libcublasLt.so.13",
                                                       "libcublasLt.so.12"};

// Returns an error that says why the names that were tried do not serve.
Status NoUsable(const Status& why) {
  return Status(
      why.code(),
      StrCat("no usable cuBLAS: ", why.message(),
             "; install cuBLAS of CUDA 12 or 13 (it is in the CUDA toolkit, "
             "and in Python's nvidia-cublas), and put its folder into "
             "LD_LIBRARY_PATH; muon with offload=states needs none"));
}

const char* NameOf(CublasResult result) {
  switch (result) {
    case CublasResult::kSuccess:
      return "CUBLAS_STATUS_SUCCESS";
    case CublasResult::kNotInitialized:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CublasResult::kAllocFailed:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CublasResult::kInvalidValue:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CublasResult::kArchMismatch:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CublasResult::kExecutionFailed:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CublasResult::kInternalError:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CublasResult::kNotSupported:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "an error that is not known";
}

StatusCode CodeOf(CublasResult result) {
  switch (result) {
    case CublasResult::kAllocFailed:
      return StatusCode::kResourceExhausted;
    case CublasResult::kNotInitialized:
    case CublasResult::kArchMismatch:
    case CublasResult::kNotSupported:
      return StatusCode::kBackendUnavailable;
    case CublasResult::kExecutionFailed:
      return StatusCode::kUnavailable;
    default:
      return StatusCode::kInternal;
  }
}

Status StatusOf(CublasResult result, std::string_view call) {
  if (result == CublasResult::kSuccess) return Status();
  return Status(CodeOf(result), StrCat(call, ": ", NameOf(result), " (",
                                       static_cast<int>(result), ")"));
}

// Finds the functions, and the version.
StatusOr<CublasLibrary> Examine(Library library) {
  CublasLibrary opened = {std::move(library), {}, ""};
#define SHARD_CUBLAS_FIND(Name, symbol, parameters)                        \
  opened.api.Name = opened.library.Find<CublasResult parameters>(#symbol); \
  if (opened.api.Name == nullptr) {                                        \
    return NotFound(opened.library.name(), " lacks ", #symbol);            \
  }
  SHARD_CUBLAS(SHARD_CUBLAS_FIND)
#undef SHARD_CUBLAS_FIND
  int major = 0;
  int minor = 0;
  SHARD_RETURN_IF_ERROR(
      StatusOf(opened.api.GetProperty(CublasProperty::kMajor, &major),
               "cublasLtGetProperty"));
  SHARD_RETURN_IF_ERROR(
      StatusOf(opened.api.GetProperty(CublasProperty::kMinor, &minor),
               "cublasLtGetProperty"));
  opened.version = StrCat(major, ".", minor);
  if (!opened.library.name().ends_with(StrCat(".", major))) {
    return FailedPrecondition(opened.library.name(), " is of version ",
                              opened.version);
  }
  return opened;
}

}  // namespace

StatusOr<CublasLibrary> OpenCublas() {
  auto opened = UseFirst(kNames, Examine);
  if (!opened.ok()) return NoUsable(opened.status());
  return opened;
}

Cublas::Cublas(std::shared_ptr<Context> context)
    : context_(std::move(context)), owner_(::getpid()) {}

bool Cublas::IsUnusable() const {
  return ::getpid() != owner_ || context_->is_abandoned();
}

Cublas::~Cublas() {
  if (handle_ == nullptr || IsUnusable()) return;
  const Context::Current current(*context_);
  api_.Destroy(handle_);
}

StatusOr<std::shared_ptr<Cublas>> Cublas::Start(
    const std::shared_ptr<Context>& context, CublasLibrary opened) {
  std::shared_ptr<Cublas> cublas(new Cublas(context));
  cublas->name_ = StrCat(opened.library.name(), " ", opened.version);
  cublas->api_ = opened.api;
  opened.library.Keep();
  SHARD_RETURN_IF_ERROR(context->Run([&] {
    return StatusOf(cublas->api_.Create(&cublas->handle_), "cublasLtCreate")
        .WithContext(cublas->name_);
  }));
  return cublas;
}

StatusOr<std::shared_ptr<const Cublas>> Cublas::Open(
    std::shared_ptr<Context> context) {
  // One that works with no driver this old is passed over.
  Status other;
  auto opened = UseFirst(
      kNames, [&](Library library) -> StatusOr<std::shared_ptr<Cublas>> {
        SHARD_ASSIGN_OR_RETURN(CublasLibrary examined,
                               Examine(std::move(library)));
        auto started = Start(context, std::move(examined));
        if (started.status().code() != StatusCode::kBackendUnavailable) {
          other = started.status();
        }
        return started;
      });
  // Another library would not help, where memory or the GPU is what is missing.
  if (!opened.ok() && other.code() == StatusCode::kResourceExhausted) {
    return Status(other.code(),
                  StrCat("cuBLAS for ", context->name(), ": ", other.message(),
                         "; free memory of the GPU"));
  }
  if (!opened.ok() && !other.ok()) return other;
  if (!opened.ok()) return NoUsable(opened.status());
  return std::shared_ptr<const Cublas>(*std::move(opened));
}

Status Cublas::ToStatus(CublasResult result, std::string_view call) const {
  return StatusOf(result, call);
}

// Returns from the caller with the error of a call.
#define SHARD_CUBLAS_CALL(cublas, Name, ...) \
  SHARD_RETURN_IF_ERROR(                     \
      (cublas)->ToStatus((cublas)->api().Name(__VA_ARGS__), "cublasLt" #Name))

Product::Product(Product&& other) noexcept
    : cublas_(std::move(other.cublas_)),
      desc_(other.desc_),
      a_(other.a_),
      b_(other.b_),
      d_(other.d_),
      algorithm_(other.algorithm_),
      workspace_bytes_(other.workspace_bytes_) {}

Product::~Product() {
  if (cublas_ == nullptr || cublas_->IsUnusable()) return;
  for (const CublasLayout layout : {a_, b_, d_}) {
    if (layout != nullptr) cublas_->api().MatrixLayoutDestroy(layout);
  }
  if (desc_ != nullptr) cublas_->api().MatmulDescDestroy(desc_);
}

StatusOr<Product> Product::Make(std::shared_ptr<const Cublas> cublas,
                                const ProductShape& shape) {
  Product product(std::move(cublas));
  const Cublas* const blas = product.cublas_.get();
  SHARD_CUBLAS_CALL(blas, MatmulDescCreate, &product.desc_, shape.compute,
                    CublasType::kF32);
  // The library's matrices are column-major, so it has the transpose of each of
  // ours, and computes D^T = alpha op(B)^T op(A)^T + beta C^T.
  const auto operation = [](bool transpose) {
    return transpose ? CublasOperation::kTranspose : CublasOperation::kNone;
  };
  const CublasOperation first = operation(shape.transpose_b);
  const CublasOperation second = operation(shape.transpose_a);
  SHARD_CUBLAS_CALL(blas, MatmulDescSetAttribute, product.desc_,
                    CublasMatmulAttribute::kTransposeA, &first, sizeof(first));
  SHARD_CUBLAS_CALL(blas, MatmulDescSetAttribute, product.desc_,
                    CublasMatmulAttribute::kTransposeB, &second,
                    sizeof(second));
  SHARD_RETURN_IF_ERROR(product.MakeLayout(shape.a, shape, &product.a_));
  SHARD_RETURN_IF_ERROR(product.MakeLayout(shape.b, shape, &product.b_));
  SHARD_RETURN_IF_ERROR(product.MakeLayout(shape.d, shape, &product.d_));
  SHARD_RETURN_IF_ERROR(product.Choose());
  return product;
}

Status Product::MakeLayout(const MatrixLayout& matrices,
                           const ProductShape& shape, CublasLayout* layout) {
  const Cublas* const blas = cublas_.get();
  SHARD_CUBLAS_CALL(blas, MatrixLayoutCreate, layout, shape.type,
                    static_cast<uint64_t>(matrices.cols),
                    static_cast<uint64_t>(matrices.rows), matrices.cols);
  SHARD_CUBLAS_CALL(blas, MatrixLayoutSetAttribute, *layout,
                    CublasLayoutAttribute::kBatchCount, &shape.count,
                    sizeof(shape.count));
  SHARD_CUBLAS_CALL(blas, MatrixLayoutSetAttribute, *layout,
                    CublasLayoutAttribute::kBatchStride, &matrices.stride,
                    sizeof(matrices.stride));
  return Status();
}

Status Product::Choose() {
  const Cublas* const blas = cublas_.get();
  CublasPreference preference = nullptr;
  SHARD_CUBLAS_CALL(blas, MatmulPreferenceCreate, &preference);
  const auto find = [&](CublasHeuristic* found) -> Status {
    const uint64_t most = kMaxWorkspace;
    SHARD_CUBLAS_CALL(blas, MatmulPreferenceSetAttribute, preference,
                      CublasPreferenceAttribute::kMaxWorkspaceBytes, &most,
                      sizeof(most));
    // Other schemes round parts of a sum to the matrices' type.
    SHARD_CUBLAS_CALL(blas, MatmulPreferenceSetAttribute, preference,
                      CublasPreferenceAttribute::kReductionSchemes,
                      &kCublasReduceInComputeType,
                      sizeof(kCublasReduceInComputeType));
    int num_found = 0;
    const CublasResult result = blas->api().MatmulAlgoGetHeuristic(
        blas->handle(), desc_, b_, a_, d_, d_, preference, 1, found,
        &num_found);
    if (result == CublasResult::kNotSupported ||
        (result == CublasResult::kSuccess && num_found < 1)) {
      return BackendUnavailable(
          blas->name(), " has no algorithm for a product that needs at most ",
          FormatBytes(most),
          " of workspace; try another version of cuBLAS, or another precision");
    }
    return blas->ToStatus(result, "cublasLtMatmulAlgoGetHeuristic");
  };
  CublasHeuristic found = {};
  const Status status = find(&found);
  blas->api().MatmulPreferenceDestroy(preference);
  SHARD_RETURN_IF_ERROR(status);
  SHARD_RETURN_IF_ERROR(
      blas->ToStatus(found.state, "cublasLtMatmulAlgoGetHeuristic"));
  algorithm_ = found.algorithm;
  workspace_bytes_ = found.workspace_bytes;
  return Status();
}

Status Product::Enqueue(float alpha, const void* a, const void* b, float beta,
                        const void* c, void* d, void* workspace,
                        CuStream stream) const {
  const Cublas* const blas = cublas_.get();
  SHARD_CUBLAS_CALL(blas, Matmul, blas->handle(), desc_, &alpha, b, b_, a, a_,
                    &beta, c, d_, d, d_, &algorithm_, workspace,
                    workspace_bytes_, stream);
  return Status();
}

}  // namespace shard::cuda
