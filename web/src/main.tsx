import "@mantine/core/styles.css";
import "uplot/dist/uPlot.min.css";
import "./main.css";

import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { createBrowserRouter, RouterProvider } from "react-router";
import { ApiError } from "./api/client";
import { App } from "./App";
import { ExperimentPage } from "./pages/ExperimentPage";
import { ExperimentsPage } from "./pages/ExperimentsPage";
import { NotFoundPage } from "./pages/NotFoundPage";
import { TrialPage } from "./pages/TrialPage";
import { theme } from "./theme";

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

const router = createBrowserRouter([
  {
    element: <App />,
    errorElement: <NotFoundPage />,
    children: [
      { path: "/", element: <ExperimentsPage /> },
      { path: "/experiments", element: <ExperimentsPage /> },
      { path: "/experiments/:id", element: <ExperimentPage /> },
      { path: "/trials/:id", element: <TrialPage /> },
      { path: "*", element: <NotFoundPage /> },
    ],
  },
]);

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <MantineProvider theme={theme} defaultColorScheme="auto">
      <QueryClientProvider client={client}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </MantineProvider>
  </StrictMode>,
);
