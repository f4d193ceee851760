package uverbs

// Objects and methods of RDMA_VERBS_IOCTL (rdma/ib_user_ioctl_cmds.h).
const (
	verbsIoctl = 0xc0181b01 // RDMA_VERBS_IOCTL

	objectDevice     = 0
	objectAsyncEvent = 16

	methodInvokeWrite   = 0
	methodQueryPort     = 2
	methodGetContext    = 3
	methodQueryContext  = 4
	methodQueryGIDTable = 5
	methodQueryGIDEntry = 6
	methodAsyncAlloc    = 0

	attrCoreIn   = 0
	attrCoreOut  = 1
	attrWriteCmd = 2
	attrUHWIn    = 1 << 12
	attrUHWOut   = attrUHWIn + 1

	flagValidOutput = 1 << 1

	ioctlHeader = 24 // bytes
	ioctlAttr   = 16 // bytes
	maxAttrs    = 64
)

// Commands of write() and INVOKE_WRITE (rdma/ib_user_verbs.h).
const (
	cmdGetContext = iota
	cmdQueryDevice
	cmdQueryPort
	cmdAllocPD
	cmdDeallocPD
	cmdCreateAH
	cmdModifyAH
	cmdQueryAH
	cmdDestroyAH
	cmdRegMR
	cmdRegSMR
	cmdReregMR
	cmdQueryMR
	cmdDeregMR
	cmdAllocMW
	cmdBindMW
	cmdDeallocMW
	cmdCreateCompChannel
	cmdCreateCQ
	cmdResizeCQ
	cmdDestroyCQ
	cmdPollCQ
	cmdPeekCQ
	cmdReqNotifyCQ
	cmdCreateQP
	cmdQueryQP
	cmdModifyQP
	cmdDestroyQP
	cmdPostSend
	cmdPostRecv
	cmdAttachMcast
	cmdDetachMcast
	cmdCreateSRQ
	cmdModifySRQ
	cmdQuerySRQ
	cmdDestroySRQ
	cmdPostSRQRecv
	cmdOpenXRCD
	cmdCloseXRCD
	cmdCreateXSRQ
	cmdOpenQP

	cmdExtended = 1 << 31
)
