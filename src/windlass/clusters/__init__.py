"""Clusters on AWS: the Terraform configuration, its driver, and what AWS still bills."""
