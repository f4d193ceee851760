/* slidingwindow-peer: the peer of transport/slidingwindow, on libibverbs and librdmacm only.
 *
 * conversation.h describes how it is controlled. Immediates, acknowledgments and private data are
 * those of transport/slidingwindow.
 *
 *   listen port blocks size              -> ok
 *   serve  ms every                      -> ok packets bytes wrong acks
 *          takes one sender until it disconnects; every: acknowledge after that many blocks, or
 *          when no more arrive
 *   send   addr port blocks size packets ms
 *                                        -> ok packets bytes acks
 *          rejected: err with the receiver's sizes
 *
 * Block n has 977 n mod (size + 1) bytes, byte i is 17 n + i.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include "conversation.h"
#define MAGIC "GXSW"
#include "rdma_cm.h"

enum { ALIGN = 64, MAX_BLOCKS = 64, LENGTH_BITS = 26, REPLY = 28, ACK = 8 };

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *ring_mr, *acks_mr;
static uint8_t *ring;
static uint64_t acks[MAX_BLOCKS];
static uint32_t stride;

/* post_recv posts a receive for an acknowledgment, or for an immediate, which needs no memory. */
static int post_recv(uint64_t i)
{
	struct ibv_sge s = {.addr = (uintptr_t)&acks[i], .length = ACK, .lkey = acks_mr->lkey};
	struct ibv_recv_wr *bad, w = {.wr_id = i, .sg_list = &s, .num_sge = 1};
	return errno = ibv_post_recv(id->qp, &w, &bad);
}

static int open_all(int rights)
{
	struct ibv_qp_init_attr a = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = {.max_send_wr = MAX_BLOCKS, .max_recv_wr = MAX_BLOCKS, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = ACK},
	};
	if (!blocks || blocks > MAX_BLOCKS || size >> LENGTH_BITS) {
		errno = EINVAL;
		return fail("blocks, size");
	}
	stride = (size + ALIGN - 1) / ALIGN * ALIGN;
	if (!(pd = ibv_alloc_pd(id->verbs)) || !(cq = ibv_create_cq(id->verbs, 2 * MAX_BLOCKS, NULL, NULL, 0))) return fail("pd, cq");
	a.send_cq = a.recv_cq = cq;
	if (rdma_create_qp(id, pd, &a) || posix_memalign((void **)&ring, 4096, (size_t)blocks * stride)) return fail("qp, memory");
	memset(ring, 0, (size_t)blocks * stride);
	ring_mr = ibv_reg_mr(pd, ring, (size_t)blocks * stride, rights);
	acks_mr = ibv_reg_mr(pd, acks, sizeof acks, IBV_ACCESS_LOCAL_WRITE);
	if (!ring_mr || !acks_mr) return fail("register");
	for (uint32_t i = 0; i < blocks; i++)
		if (post_recv(i)) return fail("post receives");
	return 0;
}

static void close_all(void)
{
	if (id && id->qp) rdma_destroy_qp(id);
	if (ring_mr) ibv_dereg_mr(ring_mr);
	if (acks_mr) ibv_dereg_mr(acks_mr);
	if (cq) ibv_destroy_cq(cq);
	if (pd) ibv_dealloc_pd(pd);
	if (id) rdma_destroy_id(id);
	free(ring);
	id = NULL, pd = NULL, cq = NULL, ring_mr = acks_mr = NULL, ring = NULL;
}

static uint32_t length(uint32_t n) { return 977u * n % (size + 1); }

/* ---- receiving ---- */

static struct { uint64_t packets, bytes, wrong, acks, told; } rx;

static int accept_one(int64_t until)
{
	struct rdma_cm_event *e = NULL;
	struct rdma_conn_param c = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
	uint8_t reply[REPLY];
	uint32_t n, s, w;
	uint64_t a;
	if (event(RDMA_CM_EVENT_CONNECT_REQUEST, until, &e)) {
		if (e) rdma_ack_cm_event(e);
		return fail("wait for a sender");
	}
	id = e->id;
	int bad = get_sizes(e->param.conn.private_data, e->param.conn.private_data_len, &n, &s);
	rdma_ack_cm_event(e);
	put_sizes(reply);
	if (bad || n != blocks || s != size) {
		rdma_reject(id, reply, REQUEST);
		errno = EINVAL;
		return fail("the sender wants other sizes");
	}
	if (open_all(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) return -1;
	w = htobe32(stride), memcpy(reply + 12, &w, 4);
	a = htobe64((uintptr_t)ring), memcpy(reply + 16, &a, 8);
	w = htobe32(ring_mr->rkey), memcpy(reply + 24, &w, 4);
	c.private_data = reply;
	c.private_data_len = REPLY;
	if (rdma_accept(id, &c) || step(RDMA_CM_EVENT_ESTABLISHED, until)) return fail("accept");
	return 0;
}

/* acknowledge sends the number of released blocks, which has grown since the last time. */
static int acknowledge(void)
{
	uint64_t n = htobe64(rx.packets);
	struct ibv_sge s = {.addr = (uintptr_t)&n, .length = ACK};
	struct ibv_send_wr *bad, w = {.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE};
	rx.told = rx.packets, rx.acks++;
	return (errno = ibv_post_send(id->qp, &w, &bad)) ? fail("post an ACK") : 0;
}

/* arrived handles the next block. */
static int arrived(const struct ibv_wc *wc)
{
	uint32_t imm = ntohl(wc->imm_data), place = imm >> LENGTH_BITS, len = imm & ((1u << LENGTH_BITS) - 1), n = rx.packets;
	if (post_recv(wc->wr_id)) return fail("post a receive");
	int good = place == n % blocks && len == wc->byte_len && len == length(n);
	for (uint32_t i = 0; good && i < len; i++) good = ring[(size_t)place * stride + i] == (uint8_t)(17 * n + i);
	rx.packets++, rx.bytes += len, rx.wrong += !good;
	return 0;
}

/* take handles one completion. It returns 1 if there was one, -1 after an error. */
static int take(void)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(cq, 1, &wc);
	if (n <= 0 || wc.status == IBV_WC_WR_FLUSH_ERR) return n;
	if (wc.status != IBV_WC_SUCCESS) {
		printf("err completion: %s\n", ibv_wc_status_str(wc.status));
		return -1;
	}
	return wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && arrived(&wc) ? -1 : 1;
}

static void do_serve(void)
{
	int64_t until = now() + 1000 * (int64_t)num("ms", 60000);
	uint64_t every = num("every", 1);
	memset(&rx, 0, sizeof rx);
	int r = accept_one(until);
	for (int idle = 0; !r && now() < until;) {
		int over = idle % 64 == 63 && gone(), n = take();
		idle = n ? 0 : idle + 1;
		if (n < 0) r = -1;
		else if (!over && (rx.packets - rx.told >= every || (idle > 32 && rx.packets > rx.told))) r = acknowledge();
		if (over && !n) break;
		if (idle > 1000) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	}
	if (!r) {
		rdma_disconnect(id);
		printf("ok packets=%lu bytes=%lu wrong=%lu acks=%lu\n", rx.packets, rx.bytes, rx.wrong, rx.acks);
	}
	close_all();
}

/* ---- sending ---- */

static struct { uint64_t addr, head, tail, done, bytes, acks; uint32_t rkey, stride; } tx;

static int connect_to(int64_t until)
{
	struct rdma_cm_event *e = NULL;
	uint8_t ask[REQUEST];
	struct rdma_conn_param c = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7, .private_data = ask, .private_data_len = REQUEST};
	uint32_t n, s, w;
	put_sizes(ask);
	if (resolve(until) || open_all(IBV_ACCESS_LOCAL_WRITE)) return -1;
	if (rdma_connect(id, &c)) return fail("connect");
	if (event(RDMA_CM_EVENT_ESTABLISHED, until, &e)) {
		if (e && e->event == RDMA_CM_EVENT_REJECTED && !get_sizes(e->param.conn.private_data, e->param.conn.private_data_len, &n, &s))
			printf("err refused: the receiver has blocks=%u size=%u\n", n, s);
		else
			fail("connect");
		if (e) rdma_ack_cm_event(e);
		return -1;
	}
	const uint8_t *b = e->param.conn.private_data;
	int bad = e->param.conn.private_data_len < REPLY || get_sizes(b, REPLY, &n, &s) || n != blocks || s != size;
	if (!bad) {
		memcpy(&w, b + 12, 4), tx.stride = be32toh(w);
		memcpy(&tx.addr, b + 16, 8), tx.addr = be64toh(tx.addr);
		memcpy(&w, b + 24, 4), tx.rkey = be32toh(w);
	}
	rdma_ack_cm_event(e);
	errno = EPROTO;
	return bad ? fail("what the receiver says") : 0;
}

/* reap waits for one completion: of a WRITE, or of an ACK, which moves the tail. */
static int reap(int64_t until)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		if (now() > until) {
			errno = ETIMEDOUT;
			return fail("wait for a completion");
		}
	if (n < 0 || wc.status != IBV_WC_SUCCESS) {
		printf("err completion: %s\n", n < 0 ? "poll" : ibv_wc_status_str(wc.status));
		return -1;
	}
	if (!(wc.opcode & IBV_WC_RECV)) {
		tx.done++;
		return 0;
	}
	uint64_t released = be64toh(acks[wc.wr_id]);
	if (wc.byte_len != ACK || released < tx.tail || released > tx.head) {
		printf("err an ACK of %lu, of %lu sent and %lu released before\n", released, tx.head, tx.tail);
		return -1;
	}
	if (post_recv(wc.wr_id)) return fail("post a receive");
	tx.tail = released, tx.acks++;
	return 0;
}

static int send_one(int64_t until)
{
	uint32_t n = tx.head, place = n % blocks, len = length(n);
	while (tx.head - tx.tail >= blocks || tx.head - tx.done >= blocks)
		if (reap(until)) return -1;
	uint8_t *b = ring + (size_t)place * stride;
	for (uint32_t i = 0; i < len; i++) b[i] = 17 * n + i;
	struct ibv_sge g = {(uintptr_t)b, len, ring_mr->lkey};
	struct ibv_send_wr *bad, w = {.sg_list = &g, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htonl(place << LENGTH_BITS | len),
		.wr.rdma = {tx.addr + (uint64_t)place * tx.stride, tx.rkey}};
	tx.head++, tx.bytes += len;
	return (errno = ibv_post_send(id->qp, &w, &bad)) ? fail("post a WRITE") : 0;
}

static void do_send(void)
{
	int64_t until = now() + 1000 * (int64_t)num("ms", 60000);
	uint64_t packets = num("packets", 1);
	memset(&tx, 0, sizeof tx);
	blocks = num("blocks", 4);
	size = num("size", 4096);
	int r = connect_to(until);
	while (!r && tx.head < packets) r = send_one(until);
	while (!r && (tx.tail < tx.head || tx.done < tx.head)) r = reap(until);
	if (!r) {
		rdma_disconnect(id);
		step(RDMA_CM_EVENT_DISCONNECTED, until); /* a lost DREQ is repeated only as long as id exists */
		printf("ok packets=%lu bytes=%lu acks=%lu\n", tx.head, tx.bytes, tx.acks);
	}
	close_all();
}

static const struct command commands[] = { { "listen", do_listen }, { "serve", do_serve }, { "send", do_send } };

int main(void) { return CONVERSE(commands); }
