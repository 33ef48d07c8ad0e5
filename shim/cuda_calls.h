/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All calls of the CUDA driver, versions 11 to 13, that this library wraps. Each row has the
 * symbol, the name by which cuGetProcAddress knows it, the CUDA version from which the name
 * means this symbol, and for commands the stream and the types of the arguments a1, a2, ...
 * cuda.c includes this file several times.
 *
 *   ASYNC  puts a command on a stream. It has a second form, _ptsz, for which stream 0 is the
 *          per-thread default stream instead of the legacy one
 *   SYNC   the same on the default stream; its second form is _ptds. It may return before the
 *          command is done: copies within the device and memsets do
 *   HOST   like SYNC, but when it returns the copy and all earlier commands on that stream may be
 *          known to be done: see cuda_copy_of
 *   OLD_   without a second form
 *   OTHER  not a command: it tells about completed work, captures or streams
 *
 * P is a pointer or handle, D a device address, D1 a device address of CUDA 3.1, Z a size,
 * U an unsigned, I an int, H an unsigned short, B an unsigned char.
 *
 * These calls are not wrapped:
 *   cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync: ordered with the stream, but no
 *     work for the device;
 *   cuMemMapArrayAsync, cuStreamAttachMemAsync: they change mappings and access rights from a
 *     point of the stream on, and are no work for the device;
 *   cuStreamBeginCaptureToCig, cuStreamEndCaptureToCig: for command lists of Direct3D 12, which
 *     does not exist where this library runs;
 *   graphics: ordering, no work.
 *
 * cuStreamWaitEvent, cuStreamWaitValue and cuWaitExternalSemaphoresAsync are ordering and no work.
 * They are wrapped for stream classes only, and never held.
 * cuStreamWriteValue, cuStreamBatchMemOp and cuSignalExternalSemaphoresAsync are wrapped, but not
 * held: another process may wait for them, whose gate is open.
 */

/* Launches. */
OLD_ASYNC(cuLaunch, "cuLaunch", 2000, 0, P)
OLD_ASYNC(cuLaunchGrid, "cuLaunchGrid", 2000, 0, P, I, I)
OLD_ASYNC(cuLaunchGridAsync, "cuLaunchGridAsync", 2000, a4, P, I, I, P)
ASYNC(cuLaunchKernel, "cuLaunchKernel", 4000, a9, P, U, U, U, U, U, U, U, P, P, P)
ASYNC(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, stream_of_launch(a1), P, P, P, P)
ASYNC(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, a9, P, U, U, U, U, U, U, U, P, P)
OLD_ASYNC(cuLaunchCooperativeKernelMultiDevice, "cuLaunchCooperativeKernelMultiDevice", 9000,
          stream_of_first(a1, a2), P, U, U)
ASYNC(cuLaunchHostFunc, "cuLaunchHostFunc", 10000, a1, P, P, P)
ASYNC(cuLaunchHostFunc_v2, "cuLaunchHostFunc", 13020, a1, P, P, P, U)
ASYNC(cuStreamAddCallback, "cuStreamAddCallback", 5000, a1, P, P, P, U)
ASYNC(cuGraphLaunch, "cuGraphLaunch", 10000, a2, P, P)
ASYNC(cuGraphUpload, "cuGraphUpload", 11010, a2, P, P)

/* Copies. */
ASYNC(cuMemcpyAsync, "cuMemcpyAsync", 4000, a4, D, D, Z, P)
ASYNC(cuMemcpyPeerAsync, "cuMemcpyPeerAsync", 4000, a6, D, P, D, P, Z, P)
ASYNC(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 3020, a4, D, P, Z, P)
ASYNC(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", 3020, a4, P, D, Z, P)
ASYNC(cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", 3020, a4, D, D, Z, P)
ASYNC(cuMemcpyHtoAAsync_v2, "cuMemcpyHtoAAsync", 3020, a5, P, Z, P, Z, P)
ASYNC(cuMemcpyAtoHAsync_v2, "cuMemcpyAtoHAsync", 3020, a5, P, P, Z, Z, P)
ASYNC(cuMemcpy2DAsync_v2, "cuMemcpy2DAsync", 3020, a2, P, P)
ASYNC(cuMemcpy3DAsync_v2, "cuMemcpy3DAsync", 3020, a2, P, P)
ASYNC(cuMemcpy3DPeerAsync, "cuMemcpy3DPeerAsync", 4000, a2, P, P)
ASYNC(cuMemcpyBatchAsync, "cuMemcpyBatchAsync", 12080, a9, P, P, P, Z, P, P, Z, P, P)
ASYNC(cuMemcpyBatchAsync_v2, "cuMemcpyBatchAsync", 13000, a8, P, P, P, Z, P, P, Z, P)
ASYNC(cuMemcpy3DBatchAsync, "cuMemcpy3DBatchAsync", 12080, a5, Z, P, P, D, P)
ASYNC(cuMemcpy3DBatchAsync_v2, "cuMemcpy3DBatchAsync", 13000, a4, Z, P, D, P)
ASYNC(cuMemBatchDecompressAsync, "cuMemBatchDecompressAsync", 12060, a5, P, Z, U, P, P)
ASYNC(cuMemcpyWithAttributesAsync, "cuMemcpyWithAttributesAsync", 13020, a5, D, D, Z, P, P)
ASYNC(cuMemcpy3DWithAttributesAsync, "cuMemcpy3DWithAttributesAsync", 13020, a3, P, D, P)
SYNC(cuMemcpy, "cuMemcpy", 4000, 0, D, D, Z)
SYNC(cuMemcpyPeer, "cuMemcpyPeer", 4000, 0, D, P, D, P, Z)
HOST(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020, 0, D, P, Z)
HOST(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020, 0, P, D, Z)
SYNC(cuMemcpyDtoD_v2, "cuMemcpyDtoD", 3020, 0, D, D, Z)
SYNC(cuMemcpyDtoA_v2, "cuMemcpyDtoA", 3020, 0, P, Z, D, Z)
SYNC(cuMemcpyAtoD_v2, "cuMemcpyAtoD", 3020, 0, D, P, Z, Z)
HOST(cuMemcpyHtoA_v2, "cuMemcpyHtoA", 3020, 0, P, Z, P, Z)
HOST(cuMemcpyAtoH_v2, "cuMemcpyAtoH", 3020, 0, P, P, Z, Z)
SYNC(cuMemcpyAtoA_v2, "cuMemcpyAtoA", 3020, 0, P, Z, P, Z, Z)
HOST(cuMemcpy2D_v2, "cuMemcpy2D", 3020, 0, P)
HOST(cuMemcpy2DUnaligned_v2, "cuMemcpy2DUnaligned", 3020, 0, P)
HOST(cuMemcpy3D_v2, "cuMemcpy3D", 3020, 0, P)
SYNC(cuMemcpy3DPeer, "cuMemcpy3DPeer", 4000, 0, P)

/* Managed memory. A location that is passed by value takes one 8-byte register. */
ASYNC(cuMemPrefetchAsync, "cuMemPrefetchAsync", 8000, a4, D, Z, I, P)
ASYNC(cuMemPrefetchAsync_v2, "cuMemPrefetchAsync", 12020, a5, D, Z, D, U, P)
ASYNC(cuMemPrefetchBatchAsync, "cuMemPrefetchBatchAsync", 13000, a8, P, P, Z, P, P, Z, D, P)
ASYNC(cuMemDiscardBatchAsync, "cuMemDiscardBatchAsync", 13000, a5, P, P, Z, D, P)
ASYNC(cuMemDiscardAndPrefetchBatchAsync, "cuMemDiscardAndPrefetchBatchAsync", 13000, a8, P, P, Z, P, P, Z, D, P)

/* Memsets. */
ASYNC(cuMemsetD8Async, "cuMemsetD8Async", 3020, a4, D, B, Z, P)
ASYNC(cuMemsetD16Async, "cuMemsetD16Async", 3020, a4, D, H, Z, P)
ASYNC(cuMemsetD32Async, "cuMemsetD32Async", 3020, a4, D, U, Z, P)
ASYNC(cuMemsetD2D8Async, "cuMemsetD2D8Async", 3020, a6, D, Z, B, Z, Z, P)
ASYNC(cuMemsetD2D16Async, "cuMemsetD2D16Async", 3020, a6, D, Z, H, Z, Z, P)
ASYNC(cuMemsetD2D32Async, "cuMemsetD2D32Async", 3020, a6, D, Z, U, Z, Z, P)
SYNC(cuMemsetD8_v2, "cuMemsetD8", 3020, 0, D, B, Z)
SYNC(cuMemsetD16_v2, "cuMemsetD16", 3020, 0, D, H, Z)
SYNC(cuMemsetD32_v2, "cuMemsetD32", 3020, 0, D, U, Z)
SYNC(cuMemsetD2D8_v2, "cuMemsetD2D8", 3020, 0, D, Z, B, Z, Z)
SYNC(cuMemsetD2D16_v2, "cuMemsetD2D16", 3020, 0, D, Z, H, Z, Z)
SYNC(cuMemsetD2D32_v2, "cuMemsetD2D32", 3020, 0, D, Z, U, Z, Z)

/* The forms from before CUDA 3.2, with 32-bit addresses and sizes. The driver still exports
 * them, and programs that look symbols up by hand find them. */
OLD_HOST(cuMemcpyHtoD, "cuMemcpyHtoD", 2000, 0, D1, P, U)
OLD_HOST(cuMemcpyDtoH, "cuMemcpyDtoH", 2000, 0, P, D1, U)
OLD_SYNC(cuMemcpyDtoD, "cuMemcpyDtoD", 2000, 0, D1, D1, U)
OLD_SYNC(cuMemcpyDtoA, "cuMemcpyDtoA", 2000, 0, P, U, D1, U)
OLD_SYNC(cuMemcpyAtoD, "cuMemcpyAtoD", 2000, 0, D1, P, U, U)
OLD_HOST(cuMemcpyHtoA, "cuMemcpyHtoA", 2000, 0, P, U, P, U)
OLD_HOST(cuMemcpyAtoH, "cuMemcpyAtoH", 2000, 0, P, P, U, U)
OLD_SYNC(cuMemcpyAtoA, "cuMemcpyAtoA", 2000, 0, P, U, P, U, U)
OLD_SYNC(cuMemcpy2D, "cuMemcpy2D", 2000, 0, P)
OLD_SYNC(cuMemcpy2DUnaligned, "cuMemcpy2DUnaligned", 2000, 0, P)
OLD_SYNC(cuMemcpy3D, "cuMemcpy3D", 2000, 0, P)
OLD_ASYNC(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync", 2000, a4, D1, P, U, P)
OLD_ASYNC(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync", 2000, a4, P, D1, U, P)
OLD_ASYNC(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync", 3000, a4, D1, D1, U, P)
OLD_ASYNC(cuMemcpyHtoAAsync, "cuMemcpyHtoAAsync", 2000, a5, P, U, P, U, P)
OLD_ASYNC(cuMemcpyAtoHAsync, "cuMemcpyAtoHAsync", 2000, a5, P, P, U, U, P)
OLD_ASYNC(cuMemcpy2DAsync, "cuMemcpy2DAsync", 2000, a2, P, P)
OLD_ASYNC(cuMemcpy3DAsync, "cuMemcpy3DAsync", 2000, a2, P, P)
OLD_SYNC(cuMemsetD8, "cuMemsetD8", 2000, 0, D1, B, U)
OLD_SYNC(cuMemsetD16, "cuMemsetD16", 2000, 0, D1, H, U)
OLD_SYNC(cuMemsetD32, "cuMemsetD32", 2000, 0, D1, U, U)
OLD_SYNC(cuMemsetD2D8, "cuMemsetD2D8", 2000, 0, D1, U, B, U, U)
OLD_SYNC(cuMemsetD2D16, "cuMemsetD2D16", 2000, 0, D1, U, H, U, U)
OLD_SYNC(cuMemsetD2D32, "cuMemsetD2D32", 2000, 0, D1, U, U, U, U)

/* No commands: in cuda_events.c and cuda_contexts.c, except for the look-ups in cuda.c. */
OTHER(cuInit, "cuInit", 2000, 0)
OTHER(cuCtxSynchronize, "cuCtxSynchronize", 2000, 0)
OTHER(cuCtxSynchronize_v2, "cuCtxSynchronize", 13000, 0)
OTHER(cuStreamSynchronize, "cuStreamSynchronize", 2000, 0)
OTHER(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000, 1)
OTHER(cuStreamQuery, "cuStreamQuery", 2000, 0)
OTHER(cuStreamQuery_ptsz, "cuStreamQuery", 7000, 1)
OTHER(cuEventRecord, "cuEventRecord", 2000, 0)
OTHER(cuEventRecord_ptsz, "cuEventRecord", 7000, 1)
OTHER(cuEventRecordWithFlags, "cuEventRecordWithFlags", 11010, 0)
OTHER(cuEventRecordWithFlags_ptsz, "cuEventRecordWithFlags", 11010, 1)
OTHER(cuCtxRecordEvent, "cuCtxRecordEvent", 12050, 0)
OTHER(cuGreenCtxRecordEvent, "cuGreenCtxRecordEvent", 12040, 0)
OTHER(cuEventSynchronize, "cuEventSynchronize", 2000, 0)
OTHER(cuEventQuery, "cuEventQuery", 2000, 0)
OTHER(cuEventDestroy, "cuEventDestroy", 2000, 0)
OTHER(cuEventDestroy_v2, "cuEventDestroy", 4000, 0)
OTHER(cuStreamCreate, "cuStreamCreate", 2000, 0)
OTHER(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, 0)
OTHER(cuStreamDestroy, "cuStreamDestroy", 2000, 0)
OTHER(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0)
OTHER(cuCtxDestroy, "cuCtxDestroy", 2000, 0)
OTHER(cuCtxDestroy_v2, "cuCtxDestroy", 4000, 0)
OTHER(cuCtxDetach, "cuCtxDetach", 2000, 0)
OTHER(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 0)
OTHER(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, 0)
OTHER(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 0)
OTHER(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, 0)
OTHER(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 0)
OTHER(cuStreamBeginCapture, "cuStreamBeginCapture", 10000, 0)
OTHER(cuStreamBeginCapture_ptsz, "cuStreamBeginCapture", 10000, 1)
OTHER(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, 0)
OTHER(cuStreamBeginCapture_v2_ptsz, "cuStreamBeginCapture", 10010, 1)
OTHER(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030, 0)
OTHER(cuStreamBeginCaptureToGraph_ptsz, "cuStreamBeginCaptureToGraph", 12030, 1)
OTHER(cuStreamBeginRecaptureToGraph, "cuStreamBeginRecaptureToGraph", 13030, 0)
OTHER(cuStreamBeginRecaptureToGraph_ptsz, "cuStreamBeginRecaptureToGraph", 13030, 1)
OTHER(cuStreamEndCapture, "cuStreamEndCapture", 10000, 0)
OTHER(cuStreamEndCapture_ptsz, "cuStreamEndCapture", 10000, 1)
OTHER(cuGraphAddEventRecordNode, "cuGraphAddEventRecordNode", 11010, 0)
OTHER(cuGraphEventRecordNodeSetEvent, "cuGraphEventRecordNodeSetEvent", 11010, 0)
OTHER(cuGraphExecEventRecordNodeSetEvent, "cuGraphExecEventRecordNodeSetEvent", 11010, 0)
OTHER(cuEventElapsedTime, "cuEventElapsedTime", 2000, 0)
OTHER(cuEventElapsedTime_v2, "cuEventElapsedTime", 12080, 0)
OTHER(cuStreamWaitEvent, "cuStreamWaitEvent", 3020, 0)
OTHER(cuStreamWaitEvent_ptsz, "cuStreamWaitEvent", 7000, 1)
OTHER(cuStreamWaitValue32, "cuStreamWaitValue32", 8000, 0)
OTHER(cuStreamWaitValue32_ptsz, "cuStreamWaitValue32", 8000, 1)
OTHER(cuStreamWaitValue32_v2, "cuStreamWaitValue32", 11070, 0)
OTHER(cuStreamWaitValue32_v2_ptsz, "cuStreamWaitValue32", 11070, 1)
OTHER(cuStreamWaitValue64, "cuStreamWaitValue64", 9000, 0)
OTHER(cuStreamWaitValue64_ptsz, "cuStreamWaitValue64", 9000, 1)
OTHER(cuStreamWaitValue64_v2, "cuStreamWaitValue64", 11070, 0)
OTHER(cuStreamWaitValue64_v2_ptsz, "cuStreamWaitValue64", 11070, 1)
OTHER(cuWaitExternalSemaphoresAsync, "cuWaitExternalSemaphoresAsync", 10000, 0)
OTHER(cuWaitExternalSemaphoresAsync_ptsz, "cuWaitExternalSemaphoresAsync", 10000, 1)
OTHER(cuStreamWriteValue32, "cuStreamWriteValue32", 8000, 0)
OTHER(cuStreamWriteValue32_ptsz, "cuStreamWriteValue32", 8000, 1)
OTHER(cuStreamWriteValue32_v2, "cuStreamWriteValue32", 11070, 0)
OTHER(cuStreamWriteValue32_v2_ptsz, "cuStreamWriteValue32", 11070, 1)
OTHER(cuStreamWriteValue64, "cuStreamWriteValue64", 9000, 0)
OTHER(cuStreamWriteValue64_ptsz, "cuStreamWriteValue64", 9000, 1)
OTHER(cuStreamWriteValue64_v2, "cuStreamWriteValue64", 11070, 0)
OTHER(cuStreamWriteValue64_v2_ptsz, "cuStreamWriteValue64", 11070, 1)
OTHER(cuStreamBatchMemOp, "cuStreamBatchMemOp", 8000, 0)
OTHER(cuStreamBatchMemOp_ptsz, "cuStreamBatchMemOp", 8000, 1)
OTHER(cuStreamBatchMemOp_v2, "cuStreamBatchMemOp", 11070, 0)
OTHER(cuStreamBatchMemOp_v2_ptsz, "cuStreamBatchMemOp", 11070, 1)
OTHER(cuSignalExternalSemaphoresAsync, "cuSignalExternalSemaphoresAsync", 10000, 0)
OTHER(cuSignalExternalSemaphoresAsync_ptsz, "cuSignalExternalSemaphoresAsync", 10000, 1)
OTHER(cuIpcGetEventHandle, "cuIpcGetEventHandle", 4010, 0)
OTHER(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, 0)
OTHER(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020, 0)
OTHER(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, 0)
OTHER(cuIpcOpenEventHandle, "cuIpcOpenEventHandle", 4010, 0)
OTHER(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 4010, 0)
OTHER(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, 0)
OTHER(cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 11020, 0)
OTHER(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020, 0)
OTHER(cuMemPoolExportPointer, "cuMemPoolExportPointer", 11020, 0)
OTHER(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020, 0)
OTHER(cuMemAlloc_v2, "cuMemAlloc", 3020, 0)
OTHER(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0)
OTHER(cuMemAllocManaged, "cuMemAllocManaged", 6000, 0)
OTHER(cuMemAllocHost_v2, "cuMemAllocHost", 3020, 0)
OTHER(cuMemHostAlloc, "cuMemHostAlloc", 2020, 0)
OTHER(cuArrayCreate_v2, "cuArrayCreate", 3020, 0)
OTHER(cuArray3DCreate_v2, "cuArray3DCreate", 3020, 0)
OTHER(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, 0)
OTHER(cuMemCreate, "cuMemCreate", 10020, 0)
OTHER(cuMemMap, "cuMemMap", 10020, 0)
OTHER(cuMemSetAccess, "cuMemSetAccess", 10020, 0)
OTHER(cuMemUnmap, "cuMemUnmap", 10020, 0)
OTHER(cuMemRelease, "cuMemRelease", 10020, 0)
OTHER(cuMemFree_v2, "cuMemFree", 3020, 0)
OTHER(cuMemFreeHost, "cuMemFreeHost", 2000, 0)
OTHER(cuMemHostRegister_v2, "cuMemHostRegister", 6050, 0)
OTHER(cuMemHostUnregister, "cuMemHostUnregister", 4000, 0)
OTHER(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, 0)
OTHER(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, 0)
OTHER(cuModuleLoad, "cuModuleLoad", 2000, 0)
OTHER(cuModuleLoadData, "cuModuleLoadData", 2000, 0)
OTHER(cuModuleLoadDataEx, "cuModuleLoadDataEx", 2010, 0)
OTHER(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", 2000, 0)
OTHER(cuModuleGetFunction, "cuModuleGetFunction", 2000, 0)
OTHER(cuModuleGetGlobal_v2, "cuModuleGetGlobal", 3020, 0)
OTHER(cuModuleUnload, "cuModuleUnload", 2000, 0)
OTHER(cuLibraryLoadData, "cuLibraryLoadData", 12000, 0)
OTHER(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", 12000, 0)
OTHER(cuLibraryGetModule, "cuLibraryGetModule", 12000, 0)
OTHER(cuLibraryGetGlobal, "cuLibraryGetGlobal", 12000, 0)
OTHER(cuLibraryGetManaged, "cuLibraryGetManaged", 12000, 0)
OTHER(cuKernelGetFunction, "cuKernelGetFunction", 12000, 0)
OTHER(cuFuncLoad, "cuFuncLoad", 12040, 0)
OTHER(cuLibraryUnload, "cuLibraryUnload", 12000, 0)
OTHER(cuArrayDestroy, "cuArrayDestroy", 2000, 0)
OTHER(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, 0)
OTHER(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, 0)
OTHER(cuGraphInstantiate, "cuGraphInstantiate", 10000, 0)
OTHER(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000, 0)
OTHER(cuGraphInstantiateWithFlags, "cuGraphInstantiate", 12000, 0)
OTHER(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", 12000, 0)
OTHER(cuGraphInstantiateWithParams_ptsz, "cuGraphInstantiateWithParams", 12000, 1)
OTHER(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, 0)
OTHER(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040, 0)
OTHER(cuCtxSetLimit, "cuCtxSetLimit", 3010, 0)
OTHER(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", 12040, 0)
OTHER(cuGreenCtxStreamCreate, "cuGreenCtxStreamCreate", 12050, 0)
OTHER(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040, 0)
OTHER(cuGetProcAddress, "cuGetProcAddress", 11030, 0)
OTHER(cuGetProcAddress_v2, "cuGetProcAddress", 12000, 0)

#undef ASYNC
#undef SYNC
#undef HOST
#undef OLD_ASYNC
#undef OLD_SYNC
#undef OLD_HOST
#undef OTHER
