package bth

// CNPLen is the length of a congestion notification packet in bytes: a BTH and 16 reserved bytes
// (IBA annex A17.9.3).
const CNPLen = HeaderLen + cnpReserved

const cnpReserved = 16

// PutCNP writes the CNPLen bytes of a congestion notification packet to b: a BTH with the BECN bit
// and PSN 0, and 16 zeros. dest is the QP that must slow down.
func PutCNP(b []byte, pkey PKey, dest QPN) {
	clear(b[HeaderLen:CNPLen])
	PutPlain(b, CNP, false, false, 0, pkey, dest, 0)
	b[4] |= bitBECN
}
