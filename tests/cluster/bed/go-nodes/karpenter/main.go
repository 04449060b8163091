// Command karpenter is Karpenter's core with its own provider for tests, whose cloud can also be out of a type.
//
// The program of that provider, sigs.k8s.io/karpenter/kwok, takes every offering for available. A cloud says that it has
// none left only when it is asked for one; so does this one, for the types that stand in the file named by SOLD_OUT.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

// cloud refuses what is sold out.
type cloud struct {
	cloudprovider.CloudProvider
}

func (c cloud) Create(ctx context.Context, claim *v1.NodeClaim) (*v1.NodeClaim, error) {
	gone := soldOut()
	for i, requirement := range claim.Spec.Requirements {
		if requirement.Key != corev1.LabelInstanceTypeStable {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(requirement.Values), func(name string) bool { return slices.Contains(gone, name) })
		if len(left) == 0 {
			return nil, cloudprovider.NewInsufficientCapacityError(
				fmt.Errorf("no capacity is left of %s", strings.Join(requirement.Values, ", ")))
		}
		claim = claim.DeepCopy()
		claim.Spec.Requirements[i].Values = left
	}
	return c.CloudProvider.Create(ctx, claim)
}

// soldOut reads the types that cannot be had just now; no file means none.
func soldOut() []string {
	said, err := os.ReadFile(os.Getenv("SOLD_OUT"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(said))
}

func main() {
	ctx, op := operator.NewOperator()
	types, err := kwok.ConstructInstanceTypes(ctx)
	if err != nil {
		panic(err)
	}
	below := cloud{kwok.NewCloudProvider(ctx, op.GetClient(), types)}
	provider := overlay.Decorate(below, op.GetClient(), op.InstanceTypeStore)
	cluster := state.NewCluster(op.Clock, op.GetClient(), provider)
	op.WithControllers(ctx, controllers.NewControllers(
		ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, provider, below, cluster, op.InstanceTypeStore,
	)...).Start(ctx)
}
