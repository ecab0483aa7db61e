// plainly.hpp keeps everything away from tensor operations of ours that a user has put between torch's operators and their
// kernels: autograd, modes of Python, functionalization, functorch.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace sagecomm {

// Plainly is in force in its thread for its lifetime.
class Plainly {
  static constexpr c10::DispatchKeySet kModes{
      c10::DispatchKey::Python,
      c10::DispatchKey::PythonTLSSnapshot,
      c10::DispatchKey::PythonDispatcher,
      c10::DispatchKey::Functionalize,
      c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
      c10::DispatchKey::FuncTorchDynamicLayerBackMode};

  at::AutoDispatchBelowADInplaceOrView noAutograd_;
  c10::impl::ExcludeDispatchKeyGuard noModes_{kModes};
};

} // namespace sagecomm
