package endpoint

import (
	"context"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// QKey is the Q_Key that Connect gives UD queue pairs.
const QKey roce.QKey = 0x676f72

// Connect connects the queue pairs of a and b, in order, to each other. UD queue pairs are
// activated with QKey instead. Both endpoints must have the same number of queue pairs.
func Connect(ctx context.Context, a, b *Endpoint, o roce.ConnectOptions) error {
	if len(a.QPs) != len(b.QPs) {
		return fmt.Errorf("connect endpoints with %d and %d queue pairs", len(a.QPs), len(b.QPs))
	}
	for i := range a.QPs {
		if err := ConnectQPs(ctx, a.QPs[i], b.QPs[i], o); err != nil {
			return err
		}
	}
	return nil
}

// ConnectQPs connects two queue pairs to each other, or activates both with QKey if they are UD.
func ConnectQPs(ctx context.Context, a, b *roce.QP, o roce.ConnectOptions) error {
	for _, q := range [2][2]*roce.QP{{a, b}, {b, a}} {
		if q[0].Type() == roce.UD {
			if err := q[0].Activate(QKey); err != nil {
				return err
			}
			continue
		}
		if err := q[0].Connect(ctx, q[1].Local(), o); err != nil {
			return err
		}
	}
	return nil
}
