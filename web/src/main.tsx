import "./styles";
import "./main.css";

import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { lazy, StrictMode, Suspense, type ComponentType } from "react";
import { createRoot } from "react-dom/client";
import { createBrowserRouter, RouterProvider } from "react-router";
import { api, ApiError } from "./api/client";
import { ROOT } from "./api/root";
import { App } from "./App";
import { keys } from "./live/keys";
import { NotFoundPage } from "./pages/NotFoundPage";
import { theme, variables } from "./theme";

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 2000,
      // A wrong request stays wrong; a service that is down is asked again, ever more slowly.
      retry: (count, error) => error instanceof ApiError && error.unreachable && count < 2,
      networkMode: "always",
      refetchOnWindowFocus: false,
    },
    mutations: { networkMode: "always" },
  },
});

/** A page that is loaded when it is first opened. */
function page(load: () => Promise<{ default: ComponentType }>) {
  const Page = lazy(load);
  return (
    <Suspense fallback={null}>
      <Page />
    </Suspense>
  );
}

const experimentPage = () => import("./pages/ExperimentPage");
const list = page(() => import("./pages/ExperimentsPage"));

// Ask for the data of the first page at once, while the rest of the bundle is still being run.
const opened = /experiments\/(exp_\w+)$/.exec(window.location.pathname)?.[1];
if (opened) {
  void experimentPage();
  void client.prefetchQuery({
    queryKey: keys.experiment(opened),
    queryFn: ({ signal }) => api.experiment(opened, signal),
  });
}

const router = createBrowserRouter(
  [
    {
      element: <App />,
      errorElement: <NotFoundPage />,
      children: [
        { path: "/", element: list },
        { path: "/experiments", element: list },
        { path: "/experiments/:id", element: page(experimentPage) },
        { path: "/compare", element: page(() => import("./pages/ComparePage")) },
        { path: "/new", element: page(() => import("./pages/NewExperimentPage")) },
        { path: "/cluster", element: page(() => import("./pages/ClusterPage")) },
        { path: "/settings", element: page(() => import("./pages/SettingsPage")) },
        { path: "/trials/:id", element: page(() => import("./pages/TrialPage")) },
        { path: "*", element: <NotFoundPage /> },
      ],
    },
  ],
  { basename: ROOT },
);

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <MantineProvider theme={theme} cssVariablesResolver={variables} defaultColorScheme="auto">
      <QueryClientProvider client={client}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </MantineProvider>
  </StrictMode>,
);
